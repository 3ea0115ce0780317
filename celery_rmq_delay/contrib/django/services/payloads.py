"""Previews of stored messages: decoded as far as that is safe, and redacted unless an operator reveals them."""

from __future__ import annotations

from django.db import router, transaction
from django.utils import timezone as now_in

from ....exceptions import RmqDelayError
from ....operations.preview import Preview, preview_of
from ....redaction import DEFAULT, Redaction
from ..broker import delay
from ..messages import StoredMessage, headers_of
from ..models import Operation, OperationItem, Payload, TaskRecord
from .actors import Actor, note_done


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
