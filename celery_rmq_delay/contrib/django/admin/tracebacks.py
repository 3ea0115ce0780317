"""A traceback in parts: the application's frames, and those of libraries, which the page folds. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ....events.fingerprint import is_application

Kind = Literal["text", "application", "library"]

_FRAME = re.compile(r'\s{2,40}File "([^"\n]{1,1000})", line [0-9]{1,9}(?:, in .{1,300})?$')


@dataclass
class Part:
    """Consecutive lines of one kind; ``frames`` is their number of frames, 0 for other text."""

    kind: Kind
    frames: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


def parts(traceback: str) -> list[Part]:
    """Return the parts of a traceback of the standard library, in order; any other text is one part."""
    found: list[Part] = []
    for kind, begins, line in _lines(traceback.splitlines()):
        if not found or found[-1].kind != kind:
            found.append(Part(kind))
        found[-1].frames += begins
        found[-1].lines.append(line)
    return found


def _lines(lines: Iterable[str]) -> Iterator[tuple[Kind, bool, str]]:
    kind: Kind = "text"
    indent = 0
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            kind = "application" if is_application(frame[1]) else "library"
            indent = _indent(line)
            yield kind, True, line
            continue
        if kind != "text" and _indent(line) <= indent:  # the source of a frame is indented deeper than the frame
            kind = "text"
        yield kind, False, line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
