"""The report of a run: as text, as JSON for ``<output>/runs/<run>/``, and as progress lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from ...tables import table


@dataclass
class Report:
    """The figures of a run; ``seconds`` by stage, ``left_out`` files by reason, sizes in bytes.

    ``clocks``: workers whose clocks differ, and by how many seconds.
    """

    run: str
    input: str
    output: str
    started_at: datetime
    first_day: str | None = None
    last_day: str | None = None
    read_from: str | None = None
    advice_from: str | None = None
    files: int = 0
    bytes_read: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    rows_in: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    events: int = 0
    clocks: dict[str, float] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    bytes_written: int = 0
    compacted: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, source: str, output: str, now: datetime) -> Report:
        """Return the report of a run that begins ``now``, with a name of its own."""
        return cls(f"{now:%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}", source, output, now)

    @contextmanager
    def stage(self, name: str, log: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """Time a stage, and log that it begins and how long it took."""
        began = time.monotonic()
        log(f"{name} ...")
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 2)
        log(f"{name}: {self.seconds[name]:.1f} s")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "started_at": self.started_at.isoformat()}

    def text(self) -> str:
        """Return the report as a table for a terminal."""
        days = "none" if self.first_day is None else f"{self.first_day} to {self.last_day}"
        facts: list[tuple[str, object]] = [
            ("days", days),
            ("read from", self.read_from),
            ("advice from", self.advice_from),
            ("files", self.files),
            ("bytes read", self.bytes_read),
            *[(f"files left out: {reason}", count) for reason, count in sorted(self.left_out.items())],
            ("rows in", self.rows_in),
            *[(f"quarantined: {reason}", count) for reason, count in sorted(self.quarantined.items())],
            ("duplicates", self.duplicates),
            ("events", self.events),
            *[(f"clock of {worker}", f"{seconds:+.1f} s") for worker, seconds in self.clocks.items()],
            *[(f"days of {name}", count) for name, count in self.tables.items()],
            ("bytes written", self.bytes_written),
            *[(f"compacted: {name}", count) for name, count in self.compacted.items()],
            *[(f"seconds: {name}", f"{seconds:.1f}") for name, seconds in self.seconds.items()],
        ]
        lines = [table(("run", self.run), facts, right={self.run})]
        return "\n".join([*lines, *[f"note: {note}" for note in self.notes]])

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_json(), indent=2)
