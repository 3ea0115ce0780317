"""Entries in Django's admin log: which user did what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Model
from django.http import HttpRequest

from ..models import Operation
from ..services.actors import Actor


def actor(request: HttpRequest) -> Actor:
    """Return the user who sent a request."""
    user: Any = request.user
    return Actor(user, user.get_username())


def log_operation(request: HttpRequest, operation: Operation) -> None:
    """Add one entry for an operation. Its tasks are in `OperationItem`, from which their histories show it."""
    log(request, operation, entry_text(operation))


def log(request: HttpRequest, row: Model, message: str) -> None:
    """Add an entry to the history of one row."""
    log_all(request, [row], message)


def log_all(request: HttpRequest, rows: Sequence[Model], message: str) -> None:
    """Add an entry to the history of each of these rows."""
    user: Any = request.user
    LogEntry.objects.log_actions(user.pk, rows, CHANGE, message)


def entry_text(operation: Operation) -> str:
    """Return the text of a log entry about an operation."""
    text = f"{operation.get_kind_display()} (operation {operation.pk})"
    return f"{text}: {operation.reason}" if operation.reason else text
