"""The commands of ``manage.py`` as a user types them, in this process."""

from __future__ import annotations

from io import StringIO
from typing import Any

from django.core.management import call_command


def manage(name: str, *arguments: str, **options: Any) -> str:
    """Run the command ``rmq_delay_NAME``; return its output."""
    output = StringIO()
    call_command(f"rmq_delay_{name}", *arguments, stdout=output, **options)
    return output.getvalue()
