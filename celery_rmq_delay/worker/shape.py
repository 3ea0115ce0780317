"""Checks of the shape of headers and bodies, which Celery's consumer trusts."""

from __future__ import annotations

import math
from typing import Any

from ..exceptions import UnreadableError
from ..headers import PROPERTIES

#: Arguments, keyword arguments, and the embedded callbacks and chains.
_PARTS = 3


def check(headers: Any) -> None:
    """Raise `UnreadableError` for unreadable headers, or headers on which Celery would fail later."""
    if PROPERTIES in headers:
        raise UnreadableError("Its properties cannot be decoded.")
    _check_limits(headers.get("timelimit"))
    stamped, stamps = headers.get("stamped_headers"), headers.get("stamps")
    if stamped and not (isinstance(stamped, (list, tuple)) and all(isinstance(each, str) for each in stamped)):
        raise UnreadableError("Its stamped_headers are not a list of names.")
    if stamps and not isinstance(stamps, dict):
        raise UnreadableError("Its stamps have no names.")


def check_payload(payload: Any) -> None:
    """Raise `UnreadableError` for a decoded body that cannot call a task: Celery would count it as a success.

    Protocol 1 has a dictionary, protocol 2 arguments, keyword arguments and the embedded options.
    """
    if isinstance(payload, dict):
        _check_limits(payload.get("timelimit"))
    elif not (isinstance(payload, (list, tuple)) and len(payload) == _PARTS and isinstance(payload[1], dict)):
        raise UnreadableError("Its body is not [args, kwargs, embed].")


def _check_limits(limits: object) -> None:
    # The pool would fail only when the task already runs.
    if limits is not None and not _are_limits(limits):
        raise UnreadableError("Its time limits are not two numbers of seconds, or None.")


def _are_limits(limits: object) -> bool:
    return isinstance(limits, (list, tuple)) and len(limits) in (0, 2) and all(map(_is_limit, limits))


def _is_limit(limit: object) -> bool:
    return limit is None or (type(limit) in (int, float) and math.isfinite(limit) and limit >= 0)  # type: ignore[arg-type,operator]
