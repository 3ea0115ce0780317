"""Compare the incidents that the analytics find with the outages of histories that are known.

    python -m benchmarks incidents                                # ten histories of each load, some minutes
    python -m benchmarks incidents --seeds 2 --markdown table.md

The histories come from `benchmarks.outage_loads`, which shares no code with the analytics. A run of the analytics reads
them from files as it does in production.

An incident *matches* an outage if they overlap in time and it names a task of which first attempts failed because of
it. Each incident matches one outage at most and each outage one incident, those with the longest common time first: an
outage that is reported in two parts, or two outages reported as one, are errors. Outages with fewer than 20 failed first
attempts are no incidents by definition, and neither wrong nor missing.

precision: incidents that match an outage. recall: outages that an incident matches. start error: seconds between the
begin of the outage, which no attempt observes exactly, and the start of the incident that matches it. bystanders: tasks
that an incident names although none of their first attempts failed because of its outage.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from benchmarks.outage_loads import APART, FIRST, LOADS, Load, Outage

LEAST = 20


@dataclass(frozen=True)
class Found:
    """An incident of the table: its times in seconds since the begin of its history."""

    start: float
    end: float
    tasks: frozenset[str]


@dataclass
class Score:
    """The results of some histories of one load."""

    load: str
    incidents: int = 0
    outages: int = 0
    matched: int = 0
    named: int = 0
    bystanders: int = 0
    start_errors: list[float] = field(default_factory=list)
    missing: list[Outage] = field(default_factory=list)
    wrong: list[Found] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Return the share of the incidents that match an outage; 1 if there are none."""
        return self.matched / (self.matched + len(self.wrong)) if self.incidents else 1.0

    @property
    def recall(self) -> float:
        """Return the share of the outages that an incident matches."""
        return self.matched / self.outages

    def add(self, outages: Sequence[Outage], incidents: Sequence[Found]) -> None:
        """Count the results of one history."""
        pairs = sorted(
            (
                (min(one.end, outage.end) - max(one.start, outage.start), -number, one, outage)
                for number, (one, outage) in enumerate((one, outage) for one in incidents for outage in outages)
                if one.tasks & outage.tasks
            ),
            key=lambda pair: pair[:2],
            reverse=True,
        )
        of: dict[int, Outage] = {}
        taken: set[int] = set()
        for common, _, one, outage in pairs:
            if common > 0 and id(one) not in of and id(outage) not in taken:
                of[id(one)] = outage
                taken.add(id(outage))
        self.incidents += len(incidents)
        for one in incidents:
            if id(one) not in of:
                self.wrong.append(one)
            elif sum(of[id(one)].failures) >= LEAST:
                self.matched += 1
                self.start_errors.append(abs(one.start - of[id(one)].start))
            if id(one) in of:
                self.named += len(one.tasks)
                self.bystanders += len(one.tasks - of[id(one)].tasks)
        large = [each for each in outages if sum(each.failures) >= LEAST]
        self.outages += len(large)
        self.missing += [each for each in large if id(each) not in taken]
