"""Assemble the ledger's lines: a story for every task, and all strikes. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.plans import Plan
from chaos.strikes import Effect

#: Most seconds from the end of a task's code until its message is settled, on a busy machine.
SETTLE = 10.0


@dataclass(slots=True)
class Execution:
    """One execution of a task: seconds of CLOCK_MONOTONIC. ``ended`` is None if its process died."""

    attempt: int
    began: float
    pid: int
    boss: int
    number: int | None = None
    ended: float | None = None
    how: str = ""
    #: When its worker received the message.
    received: float = 0.0


@dataclass(slots=True)
class Story:
    """All lines of the ledger about a task."""

    id: str
    plan: Plan
    sent: float
    #: None if it is unknown whether the broker has it.
    confirmed: float | None = None
    executions: list[Execution] = field(default_factory=list)
    #: The times and workers by which its message was moved to the quarantine queue.
    quarantined: list[tuple[float, int]] = field(default_factory=list)
    #: The times and workers by which its message was received for execution.
    received: list[tuple[float, int]] = field(default_factory=list)

    def at(self, attempt: int) -> list[Execution]:
        """Return the executions of one attempt, by time."""
        return [each for each in self.executions if each.attempt == attempt]


@dataclass(frozen=True)
class Struck:
    """A strike that was carried out; without pids it met all processes."""

    name: str
    effect: Effect
    since: float
    until: float
    pids: frozenset[int] | None = None

    def meets(self, *pids: int) -> bool:
        return self.pids is None or not self.pids.isdisjoint(pids)


@dataclass(frozen=True)
class Ladders:
    """Ladders that were in force for a time: tiers in seconds and jitter, by queue."""

    since: float
    until: float
    tiers: dict[str, list[float]]
    jitter: dict[str, float]


@dataclass
class Book:
    """The whole ledger of a run."""

    stories: dict[str, Story] = field(default_factory=dict)
    strikes: list[Struck] = field(default_factory=list)
    ladders: list[Ladders] = field(default_factory=list)
    #: Lines about tasks that were never sent.
    strangers: list[str] = field(default_factory=list)

    def went_on(self, execution: Execution) -> bool:
        """Return whether the process of an execution ran another one afterwards."""
        return execution.began < self._last.get(execution.pid, 0.0)

    def settled_by(self, moment: float) -> float:
        """Return until when data that a worker sent at ``moment`` may not have reached the broker yet."""
        until = moment + SETTLE
        for stall in self._stalls:
            if stall.since <= until and stall.until >= moment:
                until = max(until, stall.until + SETTLE)
        return until

    def in_force(self, moment: float) -> list[Ladders]:
        """Return the ladders that may have been in force for an execution that ended at ``moment``."""
        until = self.settled_by(moment)
        return [each for each in self.ladders if each.since <= until and each.until >= moment]

    def between(self, since: float, until: float) -> list[Struck]:
        """Return the strikes that overlap this time."""
        first = bisect.bisect_left(self._sinces, since - self._longest)
        last = bisect.bisect_right(self._sinces, until)
        return [strike for strike in self.strikes[first:last] if strike.until >= since]

    def __post_init__(self) -> None:
        self._last: dict[int, float] = {}
        for story in self.stories.values():
            for each in story.executions:
                self._last[each.pid] = max(each.began, self._last.get(each.pid, 0.0))
        alarms = [strike for strike in self.strikes if strike.effect is Effect.ALARM]
        self.strikes = sorted((_in(alarms, each) for each in self.strikes), key=lambda strike: strike.since)
        self._sinces = [strike.since for strike in self.strikes]
        self._longest = max((strike.until - strike.since for strike in self.strikes), default=0.0)
        # Effects that end connections can block them before.
        holding = (Effect.STALL, Effect.ALARM, Effect.CONNECTION, Effect.BROKER, Effect.RESULTS)
        self._stalls = [strike for strike in self.strikes if strike.effect in holding]


def _in(alarms: list[Struck], strike: Struck) -> Struck:
    """Return the strike with its real effect: a worker that shuts down gracefully makes no copies in an alarm."""
    if strike.effect is Effect.ORDERLY and any(strike.since <= a.until and strike.until >= a.since for a in alarms):
        return replace(strike, effect=Effect.WORKER)
    return strike


def open_book(lines: Iterable[dict[str, Any]]) -> Book:
    """Return the book of these lines; the order of processes does not matter."""
    stories: dict[str, Story] = {}
    strikes, ladders, strangers = [], [], []
    later = []
    for line in lines:
        kind = line["kind"]
        if kind == "sending":
            stories[line["id"]] = Story(line["id"], Plan.from_json(line["plan"]), line["at"])
        elif kind == "strike":
            pids = None if line["pids"] is None else frozenset(line["pids"])
            strikes.append(Struck(line["name"], Effect(line["effect"]), line["since"], line["until"], pids))
        elif kind == "ladder":
            ladders.append(_ladders(line))
        elif kind in ("confirmed", "received", "began", "ended", "quarantined"):
            later.append(line)
    for line in later:
        story = stories.get(line["id"])
        if story is None:
            strangers.append(line["id"])
        else:
            _apply(story, line)
    for story in stories.values():
        story.executions.sort(key=lambda each: each.began)
        for each in story.executions:
            mine = [at for at, boss in story.received if boss == each.boss and at <= each.began]
            each.received = max(mine, default=each.began)
        story.quarantined.sort()
    return Book(stories, strikes, ladders, strangers)


def _apply(story: Story, line: dict[str, Any]) -> None:
    kind = line["kind"]
    if kind == "confirmed":
        story.confirmed = line["at"]
    elif kind == "quarantined":
        story.quarantined.append((line["at"], line["boss"]))
    elif kind == "received":
        story.received.append((line["at"], line["boss"]))
    elif kind == "began":
        story.executions.append(Execution(line["attempt"], line["at"], line["pid"], line["boss"], line.get("number")))
    else:  # one process runs one task at a time: it is the last one that it began
        mine = [each for each in story.executions if each.pid == line["pid"] and each.ended is None]
        if mine:
            mine[-1].ended, mine[-1].how = line["at"], line["how"]


def _ladders(line: dict[str, Any]) -> Ladders:
    settings = line["settings"]
    return Ladders(
        line["since"],
        float("inf") if line["until"] is None else line["until"],
        {queue: [float(tier.removesuffix("ms")) / 1000 for tier in each["tiers"]] for queue, each in settings.items()},
        {queue: each["jitter"] for queue, each in settings.items()},
    )
