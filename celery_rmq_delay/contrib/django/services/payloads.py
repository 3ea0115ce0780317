"""Previews of stored messages: decoded as far as that is safe, and redacted unless an operator reveals them.

`plain` is for texts of messages on pages.
"""

from __future__ import annotations

import re

from django.db import router, transaction
from django.utils import timezone as now_in

from ....exceptions import RmqDelayError
from ....headers import printable
from ....operations.preview import Preview, preview_of
from ....redaction import DEFAULT, Redaction, shortened
from ..broker import delay
from ..messages import StoredMessage, headers_of
from ..models import Operation, OperationItem, Payload, TaskRecord
from .actors import Actor, note_done

#: Maximum characters of a text on a page of its own.
ON_PAGE = 20_000

# Control characters that a page cannot show; line ends and tabs stay.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def preview(record: TaskRecord) -> Preview:
    """Return the stored message of a task, redacted. Never raises for malformed messages."""
    return _preview(record, redaction_of_project())


def reveal(record: TaskRecord, actor: Actor) -> Preview:
    """Return the stored message of a task unredacted, after an audit log entry that ``actor`` revealed it."""
    now = now_in.now()
    with transaction.atomic(using=router.db_for_write(Operation)):
        operation = note_done(Operation.Kind.REVEAL, actor, requested=1, message="1 revealed")
        OperationItem.objects.create(
            operation=operation,
            record=record,
            generation=record.generation,
            position=1,
            outcome=OperationItem.Outcome.OK,
            finished_at=now,
        )
    return _preview(record, None)


def redaction_of_project() -> Redaction:
    """Return the redaction rules of the project's settings."""
    try:
        return delay().settings.redaction
    except RmqDelayError:  # without an app there are no settings
        return DEFAULT


def kept_of(record: TaskRecord) -> StoredMessage | None:
    """Return the stored message of a task; None where there is none."""
    found = Payload.objects.filter(record=record).first()
    return None if found is None else StoredMessage(bytes(found.body), bytes(found.headers), found.properties)


def _preview(record: TaskRecord, redaction: Redaction | None) -> Preview:
    kept = kept_of(record)
    if kept is None:
        return Preview(problem="not kept", redacted=redaction is not None)
    return preview_of(kept.body, kept.properties, lambda: headers_of(kept), redaction)


def plain(text: object, limit: int = ON_PAGE) -> str:
    """Return at most ``limit`` characters of a text, control characters replaced; not escaped yet."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", printable(shortened(str(text), limit)))
