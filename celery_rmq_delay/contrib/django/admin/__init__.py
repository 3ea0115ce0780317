"""The admin pages. They register themselves on the default site; `register` puts them on another one."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin import AdminSite

from ..models import (
    CollectorStatus,
    ExhaustedTask,
    FailureGroup,
    InsightRun,
    Operation,
    ParkedTask,
    TaskRecord,
    UnreadableMessage,
)
from .facts import CollectorStatusAdmin, UnreadableMessageAdmin
from .failure_groups import FailureGroupAdmin
from .insight_page import InsightRunAdmin
from .lists import ExhaustedTaskAdmin, ParkedTaskAdmin, TaskRecordAdmin
from .operation_pages import OperationAdmin

__all__ = ["PAGES", "register"]

#: The models and their pages.
PAGES = {
    ParkedTask: ParkedTaskAdmin,
    ExhaustedTask: ExhaustedTaskAdmin,
    TaskRecord: TaskRecordAdmin,
    FailureGroup: FailureGroupAdmin,
    Operation: OperationAdmin,
    InsightRun: InsightRunAdmin,
    CollectorStatus: CollectorStatusAdmin,
    UnreadableMessage: UnreadableMessageAdmin,
}


def register(site: AdminSite) -> None:
    """Register all pages on another admin site; models that are registered there already keep their pages."""
    for model, page in PAGES.items():
        if not site.is_registered(model):
            site.register(model, page)


register(admin.site)
