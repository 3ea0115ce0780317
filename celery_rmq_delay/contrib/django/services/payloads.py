"""Previews of stored messages: decoded as far as that is safe, and redacted unless an operator reveals them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from django.db import router, transaction
from django.utils import timezone as now_in
from django.utils.translation import gettext as _

from .... import headers as h
from ....exceptions import RmqDelayError
from ....headers import printable
from ....redaction import DEFAULT, Redaction, shortened
from ..broker import delay
from ..messages import StoredMessage, headers_of
from ..models import Operation, OperationItem, Payload, TaskRecord
from .actors import Actor, note_done
from .bodies import UndecodableError, decode

#: The most characters of shown arguments, and of one header.
MAX_SHOWN = 20_000
MAX_HEADER = 2_000

#: The headers that identify the task: no edit changes them.
LOCKED = frozenset({"id", "task", "root_id", "parent_id", "group"})


@dataclass(frozen=True)
class Header:
    """A header of a message, its value as text. ``locked`` headers identify the task."""

    name: str
    value: str
    locked: bool


@dataclass(frozen=True)
class Death:
    """An entry of ``x-death``: a queue that dead-lettered a message, and why. ``time`` is the first one, in UTC."""

    queue: str
    reason: str
    count: int
    exchange: str
    routing_keys: str
    time: datetime | None


@dataclass(frozen=True)
class Preview:
    """A stored message as shown. ``args`` and ``kwargs`` are JSON; with a ``problem`` they are unknown.

    ``size`` is the body's length in bytes.
    """

    args: str = ""
    kwargs: str = ""
    problem: str = ""
    size: int = 0
    content_type: str = ""
    headers: tuple[Header, ...] = ()
    deaths: tuple[Death, ...] = ()
    redacted: bool = True


def preview(record: TaskRecord) -> Preview:
    """Return the stored message of a task, redacted. Never raises for malformed messages."""
    return _preview(record, redaction_of_project())


def reveal(record: TaskRecord, actor: Actor) -> Preview:
    """Return the stored message of a task unredacted, after an audit log entry that ``actor`` revealed it."""
    now = now_in.now()
    with transaction.atomic(using=router.db_for_write(Operation)):
        operation = note_done(Operation.Kind.REVEAL, actor, requested=1, message=_("1 revealed"))
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


def as_json(value: object, limit: int = MAX_SHOWN) -> str:
    """Return a value as readable JSON of at most ``limit`` characters."""
    found, length = list[str](), 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=repr).iterencode(value):
            found.append(part)
            length += len(part)
            if length > limit:
                break
    except RecursionError:
        found.append(_("… nested too deep"))
    except TypeError:  # a table whose keys are not texts
        found = [repr(value)]
    return shortened(printable("".join(found)), limit)


def _preview(record: TaskRecord, redaction: Redaction | None) -> Preview:
    kept = kept_of(record)
    if kept is None:
        return Preview(problem=_("not kept"), redacted=redaction is not None)
    size, redacted = len(kept.body), redaction is not None
    content_type = printable(str(kept.properties.get("content_type") or ""))[:MAX_HEADER]
    try:
        headers = headers_of(kept)
    except Exception:  # noqa: BLE001 - the page shows that these bytes are malformed
        return Preview(problem=_undecodable(size, "headers"), size=size, content_type=content_type, redacted=redacted)
    args = kwargs = problem = ""
    try:
        call = decode(kept, headers)
    except UndecodableError as error:
        problem = _undecodable(size, str(error))
    else:
        args, kwargs = (as_json(redaction.value(each) if redaction else each) for each in (call.args, call.kwargs))
    return Preview(
        args=args,
        kwargs=kwargs,
        problem=problem,
        size=size,
        content_type=content_type,
        headers=tuple(
            _header(str(name), headers[name], redaction) for name in sorted(headers, key=str) if name != "x-death"
        ),
        deaths=tuple(_death(death) for death in h.deaths(headers)),
        redacted=redacted,
    )


def _undecodable(size: int, why: str) -> str:
    return _("undecodable (%(size)d bytes): %(why)s") % {"size": size, "why": printable(why)[:200]}


def _header(name: str, value: object, redaction: Redaction | None) -> Header:
    if redaction is not None and redaction.denies(name):
        text = redaction.value({name: value})[name]
    elif isinstance(value, str):
        text = redaction.text(value, MAX_HEADER) if redaction else shortened(printable(value), MAX_HEADER)
    else:
        text = as_json(redaction.value(value) if redaction else value, MAX_HEADER)
    return Header(printable(name), str(text), name in LOCKED)


def _death(death: Mapping[str, Any]) -> Death:
    keys, time = death.get("routing-keys"), death.get("time")
    return Death(
        queue=printable(str(death.get("queue", ""))),
        reason=printable(str(death.get("reason", ""))),
        count=h.whole_number(death.get("count")),
        exchange=printable(str(death.get("exchange", ""))),
        routing_keys=printable(", ".join(map(str, keys)) if isinstance(keys, list) else ""),
        time=time.replace(tzinfo=timezone.utc) if isinstance(time, datetime) else None,
    )
