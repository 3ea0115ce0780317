from typing import Any

from django.db import migrations

from ..models import search


def create(apps: Any, schema_editor: Any) -> None:
    """Create the index of messages and arguments; in PostgreSQL while tasks are written."""
    search.create(schema_editor.connection)


def drop(apps: Any, schema_editor: Any) -> None:
    """Drop the index."""
    search.drop(schema_editor.connection)


class Migration(migrations.Migration):
    atomic = False  # for CREATE INDEX CONCURRENTLY

    dependencies = [
        ("rmq_delay", "0006_discards"),
    ]

    operations = [
        migrations.RunPython(create, drop),
    ]
