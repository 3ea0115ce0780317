"""Synthetic ledgers and evidence for tests of the checker: correct ones, to which a test adds a defect."""

from __future__ import annotations

from typing import Any

from chaos.book import open_book
from chaos.checker import Verdict, check
from chaos.evidence import Evidence, Record
from chaos.plans import NEVER, Plan
from chaos.strikes import Effect

TIERS = [1.0, 2.0, 3.0, 4.0]


class Tale:
    """A run of one worker, process 1 with the children 11 and 12, on ladders of `TIERS` seconds; jitter on classic."""

    def __init__(self) -> None:
        settings = {
            queue: {"tiers": [f"{round(tier * 1000)}ms" for tier in TIERS], "jitter": jitter}
            for queue, jitter in (("classic", 0.2), ("quorum", 0.0))
        }
        self.lines: list[dict[str, Any]] = [
            {"kind": "ladder", "since": 0.0, "until": None, "settings": settings, "at": 0.0}
        ]
        self.evidence = Evidence()

    def sent(self, at: float = 100.0, *, confirmed: bool = True, task: str = "t", **plan: Any) -> Tale:
        found = Plan(**{"kind": "advances", "queue": "quorum", "fails": 1, "works": 0.0, **plan})
        self.lines.append({"kind": "sending", "id": task, "plan": found.to_json(), "at": at})
        if confirmed:
            self.lines.append({"kind": "confirmed", "id": task, "at": at + 0.001})
        return self

    def ran(
        self,
        attempt: int,
        began: float,
        how: str | None = "fails",
        *,
        ended: float | None = None,
        pid: int = 11,
        boss: int = 1,
        task: str = "t",
        number: int | None = None,
        received: float | None = None,
    ) -> Tale:
        """Add an execution; ``how`` None: its process died."""
        who = {"id": task, "attempt": attempt, "pid": pid, "boss": boss}
        if received is not None:
            self.lines.append({"kind": "received", "id": task, "at": received, "boss": boss})
        self.lines.append({"kind": "began", "at": began, "number": number, **who})
        if how:
            self.lines.append({"kind": "ended", "at": began + 0.01 if ended is None else ended, "how": how, **who})
        return self

    def struck(self, effect: Effect, since: float, until: float | None = None, pids: list[int] | None = None) -> Tale:
        until = since + 0.01 if until is None else until
        strike = {"name": effect.value, "effect": effect.value, "since": since, "until": until, "pids": pids}
        self.lines.append({"kind": "strike", "at": until, **strike})
        return self

    def quarantined(self, at: float, boss: int = 1) -> Tale:
        self.lines.append({"kind": "quarantined", "id": "t", "at": at, "boss": boss})
        return self

    def row(self, state: str, attempt: int, task: str = "t", reason: str = "") -> Tale:
        self.evidence.records[task] = Record(state, attempt, reason)
        return self

    def reported(self, kind: str, attempt: int, task: str = "t", *, rows: bool = True, files: bool = True) -> Tale:
        event = (f"{task}-{attempt}-{kind}", task, kind, attempt)
        self.evidence.attempts += [event] if rows else []
        self.evidence.history += [event] if files else []
        return self

    def judged(self) -> Verdict:
        return check(open_book(self.lines), self.evidence)

    def found(self) -> list[str]:
        """Return the kinds of the checker's findings."""
        return sorted({finding.kind for finding in self.judged().findings})


def recovered() -> Tale:
    """Return a task that fails once, waits a second, and succeeds."""
    tale = Tale().sent().ran(0, 100.5).ran(1, 101.6, "ok")
    return tale.row("RECOVERED", 1).reported("parked", 0).reported("recovered", 1)


def exhausted() -> Tale:
    """Return a task that fails until it is exhausted."""
    tale = Tale().sent(kind="hopeless", fails=NEVER)
    for attempt, at in enumerate((100.5, 101.6, 103.7, 106.8, 110.9)):
        tale.ran(attempt, at).reported("parked" if attempt < len(TIERS) else "exhausted", attempt)
    return tale.row("EXHAUSTED", len(TIERS))
