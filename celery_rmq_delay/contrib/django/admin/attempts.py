"""The attempts of a task as a timeline, and a traceback in parts: the page folds frames of libraries. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, zip_longest
from typing import Literal, NamedTuple

from ....events.fingerprint import is_application
from ....events.schema import DISCARDED, REQUEUED
from ..models import Attempt

Kind = Literal["text", "application", "library"]

_FRAME = re.compile(r'\s{2,40}File "([^"\n]{1,1000})", line [0-9]{1,9}(?:, in .{1,300})?$')


@dataclass(frozen=True)
class Step:
    """One attempt; ``waited_ms`` is the time from its end to the next one's start, if known."""

    attempt: Attempt
    started_at: datetime
    waited_ms: int | None

    @property
    def late_ms(self) -> int | None:
        """How much longer than planned it waited."""
        planned = self.attempt.delay_ms
        return None if planned is None or self.waited_ms is None else self.waited_ms - planned

    @property
    def is_act(self) -> bool:
        """Whether it is no attempt but the act of a user, who is stored as the worker."""
        return self.attempt.kind in (DISCARDED, REQUEUED)


def timeline(attempts: Sequence[Attempt]) -> list[Step]:
    """Return the steps of one task's attempts, which must be in order."""
    steps: list[Step] = []
    for attempt, following in zip_longest(attempts, attempts[1:]):
        waited = None
        if following is not None and attempt.delay_ms is not None and following.generation == attempt.generation:
            waited = round((_started(following) - attempt.occurred_at).total_seconds() * 1000)
        steps.append(Step(attempt, _started(attempt), waited))
    return steps


def _started(attempt: Attempt) -> datetime:
    return attempt.occurred_at - timedelta(milliseconds=attempt.runtime_ms or 0)


class Part(NamedTuple):
    """Consecutive lines of one kind; ``frames`` is their number of frames, 0 for other text."""

    kind: Kind
    frames: int
    text: str


def parts(traceback: str) -> list[Part]:
    """Return the parts of a traceback of the standard library, in order; any other text is one part."""
    found = []
    for kind, group in groupby(_lines(traceback.splitlines()), key=lambda each: each[0]):
        lines = [(begins, line) for _kind, begins, line in group]
        found.append(Part(kind, sum(begins for begins, _line in lines), "\n".join(line for _begins, line in lines)))
    return found


def _lines(lines: Iterable[str]) -> Iterator[tuple[Kind, bool, str]]:
    kind: Kind = "text"
    indent = 0
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            kind = "application" if is_application(frame[1]) else "library"
            indent = _indent(line)
        elif kind != "text" and _indent(line) <= indent:  # the source of a frame is indented deeper than the frame
            kind = "text"
        yield kind, frame is not None, line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
