"""The text of a traceback, as the standard library formats it, cached for repeated failures.

Failures repeat: the same lines raise again and again. The part of the text that depends on code only is cached by the
(file, function, line, instruction) of its frames; type and message of the exception are formatted each time.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from types import TracebackType
from typing import Any

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_TITLE = "Traceback (most recent call last):\n"
_CACHED_STACKS = 1024
#: Python searches the frames for names similar to the missing one ("Did you mean ...?").
_SUGGESTING = (NameError, AttributeError, ImportError)

_Frames = tuple[tuple[str, str, int, int], ...]
_stacks: dict[_Frames, str] = {}


def format_exception(exception: BaseException, tb: TracebackType | None) -> str:
    """Return what ``"".join(traceback.format_exception(type(exception), exception, tb))`` returns."""
    parts: list[str] = []
    seen: set[int] = set()
    link, stack = "", tb
    current: BaseException | None = exception
    while current is not None and id(current) not in seen:
        if _is_group(current):
            return "".join(traceback.format_exception(type(exception), exception, tb))
        seen.add(id(current))
        parts.append(_one(current, stack) + link)
        if current.__cause__ is not None:
            current, link = current.__cause__, _CAUSE
        elif current.__context__ is not None and not current.__suppress_context__:
            current, link = current.__context__, _CONTEXT
        else:
            break
        stack = current.__traceback__
    return "".join(reversed(parts))


def _one(exception: BaseException, tb: TracebackType | None) -> str:
    if isinstance(exception, _SUGGESTING):
        return "".join(traceback.format_exception(type(exception), exception, tb, chain=False))
    only = _only(exception)
    return _TITLE + _stack(tb) + only if tb is not None else only


def _only(exception: BaseException) -> str:
    """Return type and message; the standard library extracts the stacks of all causes to do so."""
    kind: Any = type(exception)
    name = _plain_name(kind)
    if name is not None and getattr(exception, "__notes__", None) is None:
        try:
            text = str(exception)
        except Exception:  # noqa: BLE001 - the standard library has a text for it
            return "".join(traceback.format_exception_only(kind, exception))
        return f"{name}: {text}\n" if text else f"{name}\n"
    return "".join(traceback.format_exception_only(kind, exception))


@lru_cache(maxsize=256)
def _plain_name(kind: Any) -> str | None:
    """Return the standard library's name of an exception; None if it formats more than name and message."""
    if issubclass(kind, (SyntaxError, *_SUGGESTING)) or _is_group_type(kind):
        return None
    module = kind.__module__
    return kind.__qualname__ if module in ("__main__", "builtins") else f"{module}.{kind.__qualname__}"


def _stack(tb: TracebackType) -> str:
    frames = _frames(tb)
    text = _stacks.get(frames)
    if text is None:
        if len(_stacks) >= _CACHED_STACKS:
            _stacks.clear()
        text = _stacks[frames] = "".join(traceback.format_tb(tb))
    return text


def _frames(tb: TracebackType | None) -> _Frames:
    found = []
    while tb is not None:
        code = tb.tb_frame.f_code
        found.append((code.co_filename, code.co_name, tb.tb_lineno, tb.tb_lasti))
        tb = tb.tb_next
    return tuple(found)


@lru_cache(maxsize=256)
def _is_group_type(kind: type[BaseException]) -> bool:
    return any(base.__name__ == "BaseExceptionGroup" for base in kind.__mro__)


def _is_group(exception: BaseException) -> bool:
    kind: Any = type(exception)  # for mypy no exception class is hashable
    return _is_group_type(kind)
