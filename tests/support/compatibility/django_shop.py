"""The shop with Django's database as result backend: its tables, and each state that a result has had."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tests.support.compatibility.plays import Play, Product

#: Creates the tables, in the first process that gets here.
BEFORE = """
import fcntl, os
from pathlib import Path
import django
from django.core.management import call_command
from django.db import connection

django.setup()
STORED = "CREATE TRIGGER IF NOT EXISTS stored_{on} AFTER {on} ON django_celery_results_taskresult " \\
    "BEGIN INSERT INTO states VALUES (NEW.task_id, NEW.status); END"
with open(Path(os.environ["SHOP_FOLDER"], "migrating"), "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS states (task_id, status)")
        for on in ("INSERT", "UPDATE"):
            cursor.execute(STORED.format(on=on))
connection.close()
"""
DJANGO = Product(
    before=BEFORE,
    environ=(("DJANGO_SETTINGS_MODULE", "tests.support.compatibility.django_settings"), ("SHOP_BACKEND", "django-db")),
)


@contextmanager
def database(play: Play) -> Iterator[sqlite3.Connection]:
    """Open the database of a run, with rows by column."""
    with closing(sqlite3.connect(play.folder / "shop.sqlite3", timeout=60)) as connection, connection:
        connection.row_factory = sqlite3.Row
        yield connection


def rows(play: Play, query: str, *parameters: Any) -> list[dict[str, Any]]:
    """Return the rows of a query; none while its table does not exist."""
    with database(play) as connection:
        try:
            return [dict(row) for row in connection.execute(query, parameters)]
        except sqlite3.OperationalError:
            return []


def result_rows(play: Play) -> list[dict[str, Any]]:
    """Return the rows of django-celery-results, each with the ``states`` that it has had."""
    found = rows(play, "SELECT * FROM django_celery_results_taskresult ORDER BY id")
    for row in found:
        row["states"] = [
            each["status"] for each in rows(play, "SELECT * FROM states WHERE task_id = ?", row["task_id"])
        ]
    return found
