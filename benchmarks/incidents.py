"""Compare the incidents that the analytics find with the outages of histories that are known.

    python -m benchmarks incidents                                # ten histories of each load, some minutes
    python -m benchmarks incidents --seeds 2 --markdown table.md

The histories come from `benchmarks.outage_loads`, which shares no code with the analytics. A run of the analytics reads
them from files as it does in production.

An incident *matches* an outage if they overlap in time and it names a task whose first attempts failed because of it.
Each incident matches one outage at most and each outage one incident, those with the longest common time first: an
outage that is reported in two parts, or two outages reported as one, are errors. Outages with fewer than 20 failed
first attempts are no incidents by definition, and neither wrong nor missing.

precision: incidents that match an outage. recall: outages that an incident matches. start error: seconds between the
begin of the outage, which no attempt observes exactly, and the start of the incident that matches it. bystanders: tasks
that an incident names although none of their first attempts failed because of its outage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import dataset

from benchmarks.outage_loads import APART, FIRST, LOADS, Load, Outage
from celery_rmq_delay.history.output import table_files

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


def score(load: str, seeds: Sequence[int], folder: Path) -> Score:
    """Return the score of the analytics over histories of a load, all in one run: they are days apart."""
    histories: dict[int, Load] = {seed: LOADS[load](seed) for seed in seeds}
    for seed, history in histories.items():
        history.write(folder / "history", FIRST + seed * APART, seed)
    rows = incidents_of(folder / "history", folder / "output")
    found = Score(load)
    for seed, history in histories.items():
        start = FIRST + seed * APART
        own = [row for row in rows if start <= row["started_at"] < start + APART]
        found.add(history.outages, [_found(row, start) for row in own])
    return found


def _found(row: dict[str, Any], start: datetime) -> Found:
    begin, end = ((row[name] - start).total_seconds() for name in ("started_at", "ended_at"))
    return Found(begin, end, frozenset(row["tasks"]))


def incidents_of(history: Path, output: Path) -> list[dict[str, Any]]:
    """Run the analytics over a history, and return the rows of the table."""
    command = [sys.executable, "-m", "celery_rmq_delay.analytics", "run", "--no-advice", "--no-compact"]
    subprocess.run([*command, "--input", str(history), "--output", str(output)], check=True, capture_output=True)
    return dataset.dataset(table_files(str(output), "incidents"), format="parquet").to_table().to_pylist()


HEAD = (
    "load",
    "outages",
    "incidents",
    "precision",
    "recall",
    "start error, median s",
    "90 %",
    "bystanders",
    "tasks named",
)


def markdown(scores: Iterable[Score]) -> str:
    """Return the table of all loads."""
    lines = [HEAD, ("---", *("---:",) * (len(HEAD) - 1))]
    for each in scores:
        errors = [f"{np.quantile(each.start_errors, part):.0f}" if each.start_errors else "" for part in (0.5, 0.9)]
        counts = f"{each.outages}", f"{each.incidents}", f"{each.precision:.3f}", f"{each.recall:.3f}"
        lines.append((each.load, *counts, *errors, str(each.bystanders), str(each.named)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def faults(found: Score) -> Iterator[str]:
    """Yield a line for each missing outage and each wrong incident."""
    for outage in found.missing:
        tasks = ", ".join(sorted(outage.tasks))
        times = f"{outage.start / 3600:.2f} h to {outage.end / 3600:.2f} h"
        yield f"missing: {outage.kind}, {outage.cause}, {times}: {tasks}"
    for one in found.wrong:
        yield f"wrong: {one.start / 3600:.2f} h to {one.end / 3600:.2f} h: {', '.join(sorted(one.tasks))}"


def main() -> None:
    """Print the table, and each fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="Histories of each load.")
    parser.add_argument("--load", choices=LOADS, action="append", help="Only these loads.")
    parser.add_argument("--markdown", type=Path, help="Also write the table to this file.")
    given = parser.parse_args()
    found = []
    for load in given.load or LOADS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(score(load, range(1, given.seeds + 1), Path(folder)))
        for line in faults(found[-1]):
            print(f"{load}: {line}")
    text = markdown(found)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
