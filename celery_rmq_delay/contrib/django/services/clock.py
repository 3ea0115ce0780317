"""The clock of the database: the times of changes that several hosts write can be compared."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.conf import settings
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone as of_project

from ..models import TaskRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def utc_of(connection: BaseDatabaseWrapper) -> datetime:
    """Return the present time in UTC: PostgreSQL's, or that of this host, which SQLite shares with all processes."""
    if connection.vendor != "postgresql":
        return datetime.now(timezone.utc)
    with connection.cursor() as cursor:
        cursor.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        return _EPOCH + timedelta(microseconds=cursor.fetchone()[0])


def now() -> datetime:
    """Return the same as the project's models store it: without a time zone where ``USE_TZ`` is off."""
    found = utc_of(connections[router.db_for_write(TaskRecord)])
    return found if settings.USE_TZ else of_project.make_naive(found)
