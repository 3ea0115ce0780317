"""Previews of messages: decoded as far as that is safe, and redacted unless the reader may see secrets. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .. import headers as h
from ..amqp.bodies import UndecodableError, decode
from ..headers import printable
from ..redaction import Redaction, shortened

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


def preview_of(
    body: bytes, properties: Mapping[str, Any], read_headers: Callable[[], dict[str, Any]], redaction: Redaction | None
) -> Preview:
    """Return a message as shown, without secrets unless ``redaction`` is None. Never raises for malformed messages."""
    size, redacted = len(body), redaction is not None
    content_type = printable(str(properties.get("content_type") or ""))[:MAX_HEADER]
    try:
        headers = read_headers()
    except Exception:  # noqa: BLE001 - the preview states that these bytes are malformed
        return Preview(problem=_undecodable(size, "headers"), size=size, content_type=content_type, redacted=redacted)
    args = kwargs = problem = ""
    try:
        call = decode(body, properties, headers)
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
        found.append("… nested too deep")
    except TypeError:  # a table whose keys are not texts
        found = [repr(value)]
    return shortened(printable("".join(found)), limit)


def _undecodable(size: int, why: str) -> str:
    return f"undecodable ({size} bytes): {printable(why)[:200]}"


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
