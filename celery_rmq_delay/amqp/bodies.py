"""Bodies of messages: decoded as far as that is safe. No I/O.

They may be hostile: only JSON is decoded, and at most `MAX_BODY` bytes of it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The most bytes of a body that are decoded.
MAX_BODY = 1_000_000

_DEFLATED = ("application/x-gzip", "gzip", "zlib")
_TEXT_ENCODINGS = ("utf-8", "us-ascii", "ascii", "")


class UndecodableError(ValueError):
    """A body cannot be shown; the text is the reason."""


@dataclass(frozen=True)
class Call:
    """The call in a body: ``embed`` are the options of protocol 2; ``facts`` about the task are those of protocol 1."""

    args: list[Any]
    kwargs: dict[str, Any]
    embed: dict[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


def decode(body: bytes, properties: Mapping[str, Any], headers: Mapping[str, Any], *, compressed: bool = True) -> Call:
    """Return the decoded body: JSON in a text encoding, deflated only if ``compressed``. Raises `UndecodableError`."""
    content_type = str(properties.get("content_type") or "")
    if content_type != "application/json":
        raise UndecodableError(content_type or "no content type")
    if str(properties.get("content_encoding") or "").lower() not in _TEXT_ENCODINGS:
        raise UndecodableError(str(properties["content_encoding"]))
    if compression := headers.get("compression"):
        if not compressed or compression not in _DEFLATED:
            raise UndecodableError(str(compression))
        body = _inflated(body)
    if len(body) > MAX_BODY:
        raise UndecodableError("too large to show")
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise UndecodableError("not readable as JSON") from error
    facts = found if isinstance(found, dict) and "task" in found else {}
    parts = [facts.get("args", []), facts.get("kwargs", {}), {}] if facts else found
    if not (isinstance(parts, list) and [type(each) for each in parts] == [list, dict, dict]):
        raise UndecodableError("not the arguments of a task")
    args, kwargs, embed = parts
    return Call(args, kwargs, embed, facts)


def _inflated(body: bytes) -> bytes:
    try:
        # One byte more than the limit: a larger body is not inflated to its end.
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(body, MAX_BODY + 1)
    except zlib.error as error:
        raise UndecodableError("its compression is broken") from error
