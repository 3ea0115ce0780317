"""Entries in Django's admin log: which user did what."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connections, router
from django.db.models import CharField, Model, TextField, Value
from django.db.models.functions import Cast, Concat, Left
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from ..models import Operation, OperationItem
from ..services.actors import Actor

MAX_REPR = 200


def actor(request: HttpRequest) -> Actor:
    """Return the user who sent a request."""
    user: Any = request.user
    return Actor(user, user.get_username())


def log_selection(request: HttpRequest, model: type[Model], operation: Operation) -> None:
    """Add an entry to the history of each task of an operation, with SQL alone: a million tasks need no memory."""
    using = router.db_for_write(LogEntry)
    kind = ContentType.objects.get_for_model(model, for_concrete_model=False)
    number: Any = Cast("record_id", TextField())
    name = Concat("record__name", Value("["), "record__task_id", Value("]"), output_field=CharField())
    shown: Any = Left(name, MAX_REPR)
    items = OperationItem.objects.using(using).filter(operation=operation).order_by().values_list(number, shown)
    selected, parameters = items.query.get_compiler(using).as_sql()
    quote = connections[using].ops.quote_name
    meta: Any = LogEntry._meta
    names = ("object_id", "object_repr", "action_time", "user", "content_type", "action_flag", "change_message")
    columns = ", ".join(quote(meta.get_field(name).column) for name in names)
    sql = (
        f"INSERT INTO {quote(meta.db_table)} ({columns}) "  # noqa: S608 - names of ours and Django's own SQL
        f"SELECT chosen.*, %s, %s, %s, %s, %s FROM ({selected}) chosen"
    )
    now = meta.get_field("action_time").get_db_prep_save(timezone.now(), connections[using])
    fixed = [now, request.user.pk, kind.pk, CHANGE, entry_text(operation)]
    with connections[using].cursor() as cursor:
        cursor.execute(sql, [*fixed, *parameters])


def log(request: HttpRequest, row: Model, message: str) -> None:
    """Add an entry to the history of one row."""
    user: Any = request.user
    LogEntry.objects.log_actions(user.pk, [row], CHANGE, message)


def entry_text(operation: Operation) -> str:
    """Return the text of a log entry about an operation."""
    text = _("%(what)s (operation %(number)s)") % {"what": operation.get_kind_display(), "number": operation.pk}
    return f"{text}: {operation.reason}" if operation.reason else text
