"""The progress display and the report of a run."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from chaos.checker import Verdict
from chaos.schedule import Strike
from chaos.strikes import Fault

if TYPE_CHECKING:
    from chaos.run import Striker
    from chaos.world import World

KINDS = ("lost", "early", "twice", "blamed", "wrong", "rows", "files")
_MEANINGS = {
    "lost": "lost",
    "early": "early",
    "twice": "twice, unexplained",
    "blamed": "quarantined, unexplained",
    "wrong": "otherwise wrong",
    "rows": "rows that do not agree",
    "files": "history files that do not agree",
}
_SHOWN = 20
#: Seconds between two updates of the display.
_PAUSE = 1.0


class Tally:
    """Counts the ledger's lines by kind, reading each byte once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.counts: Counter[str] = Counter()

    def count(self, *kinds: str) -> None:
        """Count the new lines."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as lines:
                lines.seek(self._read.get(path, 0))
                new = lines.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for kind in kinds:
                self.counts[kind] += whole.count(f'"kind": "{kind}"'.encode())


class Progress:
    """The display of a running run."""

    def __init__(self, world: World, faults: Sequence[Fault], strikes: Sequence[Strike]) -> None:
        self._world, self._faults = world, faults
        self._wanted = Counter(strike.fault for strike in strikes)
        self._tally, self._begun, self._shown = Tally(world.book), time.monotonic(), 0.0

    def updater(self, live: Live) -> Callable[[Striker], None]:
        """Return a function that updates the display from time to time."""

        def update(striker: Striker) -> None:
            if time.monotonic() - self._shown >= _PAUSE:
                self._shown = time.monotonic()
                live.update(self.table(striker), refresh=True)

        return update

    def table(self, striker: Striker | None = None) -> Group:
        """Return the display."""
        self._tally.count("sending", "began", "ended")
        counts, total = self._tally.counts, self._world.load.tasks
        table = Table("fault", "struck", "now")
        for fault in self._faults:
            done, now = (striker.done[fault.name], striker.under_way[fault.name]) if striker else (0, 0)
            table.add_row(fault.name, f"{done} of {self._wanted[fault.name]}", "struck" if now else "")
        seconds = time.monotonic() - self._begun
        line = f"{seconds:.0f} s: {counts['sending']} of {total} tasks sent, {counts['began']} executions"
        return Group(table, ProgressBar(total=total, completed=counts["sending"]), line)


def print_verdict(console: Console, verdict: Verdict, struck: Mapping[str, int] | None = None) -> None:
    """Print the verdict."""
    if struck:
        strikes = Table("fault", "struck", "additional executions that it explains")
        for name, count in struck.items():
            strikes.add_row(name, str(count), str(verdict.explained.get(name, 0)))
        console.print(strikes)
    figures = Table("figure", "count")
    for name, count in verdict.figures.items():
        figures.add_row(name, f"{count:,}")
    for kind in KINDS:
        count = verdict.count(kind)
        figures.add_row(_MEANINGS[kind], str(count), style="red" if count else "green")
    console.print(figures)
    for finding in verdict.findings[:_SHOWN]:
        console.print(f"{finding.kind}: {finding.id}: {finding.text}", style="red", soft_wrap=True, markup=False)
    for line in verdict.stories:
        console.print(line, soft_wrap=True, markup=False)


def as_json(verdict: Verdict, struck: Mapping[str, int], seed: int, command: str, seconds: float) -> str:
    """Return the verdict as JSON."""
    found = {
        "seed": seed,
        "command": command,
        "seconds": round(seconds, 1),
        "figures": verdict.figures,
        "strikes": dict(struck),
        "explained": verdict.explained,
        "counts": {kind: verdict.count(kind) for kind in KINDS},
        "findings": [asdict(finding) for finding in verdict.findings],
    }
    return json.dumps(found, indent=2) + "\n"
