"""Small random histories with every kind of fault: seeded, so that they are the same in every run."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from typing import Any

from celery_rmq_delay.analytics.schema import EVENTS
from celery_rmq_delay.events.schema import event_id

Row = dict[str, Any]

DAYS = 3
FIRST = datetime(2025, 1, 1, tzinfo=timezone.utc)

TASKS = {"shop.pay": "payments", "shop.mail": "mails", "shop.sync": "payments", "crm.push": "crm"}
LADDERS = {"payments": [10_000, 60_000, 600_000], "mails": [30_000, 7_200_000], "crm": []}
FAILURES = (
    ("Timeout", "no answer", "f1"),
    ("Timeout", "no answer from b", "f1"),
    ("Refused", "refused by é", "f2"),
    ("Refused", None, "f3"),
    (None, None, None),
)
#: Faults of bad rows.
BAD: tuple[Row, ...] = (
    {"event_id": None},
    {"occurred_at": None},
    {"queue": None},
    {"generation": None, "attempt": -1},
    {"ladder_ms": None},
    {"kind": "rollup", "ok_count": None},
    {"kind": "vanished"},
    {"task_id": None, "reason": "gave_up"},
    {"occurred_at": datetime(2031, 1, 1, tzinfo=timezone.utc)},
    {"attempt": -1},
    {"runtime_ms": -5},
    {"ladder_ms": [10_000, -1]},
    {"runtime_ms": 2**63 - 1},
    {"delay_ms": 10**12 + 1},
    {"kind": "rollup", "ok_count": 2**63 - 1},
)


def first_day(seed: int) -> date:
    """Return the first of the `DAYS` of a history; those of two seeds do not overlap."""
    return (FIRST + timedelta(days=seed * (DAYS + 2))).date()


class RandomHistory:
    """The ``rows`` of one history, of all kinds, good and bad, in any order."""

    def __init__(self, seed: int) -> None:
        self.rows: list[Row] = []
        self._random = random.Random(seed)
        self._seed = seed
        self._start = FIRST + timedelta(days=seed * (DAYS + 2))
        self._skew = {f"w{number}": self._random.choice([0, 0, 0, -90, 45, 4_000]) for number in range(4)}
        for number in range(self._random.randint(5, 30)):
            self._task(f"{seed}-{number}", self._random.uniform(0, DAYS * 86_400))
        for _ in range(self._random.randint(0, 3)):
            self._burst()
        for number in range(self._random.randint(0, 20)):
            self._rollup(number)
        self._copies()
        self._spoil()
        self._random.shuffle(self.rows)

    def _is(self, chance: float) -> bool:
        return self._random.random() < chance

    def _burst(self) -> None:
        """Many tasks fail within minutes, some of the bursts around midnight, and often again a little later."""
        start = self._random.choice(
            [self._random.uniform(0, DAYS * 86_400), self._random.randint(1, DAYS) * 86_400 - 90]
        )
        for again in range(self._random.randint(1, 3)):
            begin = start + again * self._random.uniform(60, 900)
            name = f"{self._seed}-{self._random.randrange(10**9)}"
            for number in range(self._random.randint(5, 30)):
                self._task(f"{name}-{number}", begin + self._random.uniform(0, 150))

    def _task(self, task_id: str, start: float) -> None:
        """Add the events of a task and its replays."""
        task = self._random.choice(list(TASKS))
        now = start
        for generation in range(self._random.choice([1, 1, 1, 2, 3])):
            now = self._advance(task_id, task, generation, now) + self._random.uniform(1, 5_000)

    def _advance(self, task_id: str, task: str, generation: int, start: float) -> float:
        """Add the attempts of one generation until it ends or waits; return when."""
        queue, now, attempt, first = TASKS[task], start, 0, None
        last = self._random.choice([0, 1, 1, 2, 2, 3, 6])
        has_first = self._is(0.8)
        while True:
            fields: Row = {"task": task, "queue": queue, "worker": f"w{self._random.randrange(4)}"}
            at = self._at(now, fields["worker"])
            fields |= {"runtime_ms": self._random.choice([None, self._random.randint(0, 9_000)])}
            fields |= {"first_failed_at": first if has_first else None, "ladder_ms": LADDERS[queue]}
            fields["max_retries"] = len(LADDERS[queue])
            if attempt == last:
                self._end(task_id, generation, attempt, at, fields)
                return now
            failure = dict(
                zip(("exception_type", "exception_message", "fingerprint"), self._random.choice(FAILURES), strict=True)
            )
            tier, delay = self._wait(queue, attempt)
            kind = self._random.choice(["parked", "parked", "forwarded"])
            more = {**fields, **failure, "tier": tier, "delay_ms": delay}
            self._add(kind, task_id, generation, attempt, at, more)
            if self._is(0.05):  # the worker died, the attempt was made again, and ended otherwise
                later = at + timedelta(seconds=self._random.uniform(0, 50))
                self._add(self._random.choice(["exhausted", "recovered"]), task_id, generation, attempt, later, fields)
            if self._is(0.05):
                self._add("requeued", task_id, generation, attempt, at, fields)
            if self._is(0.04):
                later = at + timedelta(seconds=self._random.uniform(0, 50))
                self._add("discarded", task_id, generation, attempt, later, {**fields, "reason": "discard"})
            first = first or at
            now += delay / 1000 + self._random.uniform(0, 30)
            attempt += 1

    def _wait(self, queue: str, attempt: int) -> tuple[int | None, int]:
        ladder = LADDERS[queue]
        if not ladder or self._is(0.1):
            return None, self._random.choice([7, 99, 1_000, 12_345, self._random.randint(0, 50_000_000)])
        tier = min(attempt + 1, len(ladder))
        return tier, ladder[tier - 1]

    def _end(self, task_id: str, generation: int, attempt: int, at: datetime, fields: Row) -> None:
        kind = self._random.choice(["recovered"] * 4 + ["exhausted"] * 3 + ["discarded", "open"])
        if kind == "open":
            return
        reasons = {
            "exhausted": ["retries_used", "gave_up", "crashed", "expired", "unknown_task"],
            "discarded": ["revoked", "expired", "ignored"],
        }.get(kind, [None])
        failure = self._random.choice(FAILURES) if kind == "exhausted" else (None, None, None)
        names = ("exception_type", "exception_message", "fingerprint")
        more = {**fields, **dict(zip(names, failure, strict=True)), "reason": self._random.choice(reasons)}
        self._add(kind, task_id, generation, attempt, at, more)
        if self._is(0.1):
            self._add("discarded", task_id, generation, attempt, at + timedelta(seconds=70), {**fields, "reason": "x"})
        if self._is(0.1):  # another life with the same id
            self._add(
                "parked", task_id, generation, attempt + 1, at + timedelta(seconds=500), {**fields, "delay_ms": 7}
            )

    def _rollup(self, number: int) -> None:
        task = self._random.choice(list(TASKS))
        at = self._at(self._random.uniform(0, DAYS * 86_400), "w0")
        more = {"task": task, "queue": TASKS[task], "worker": "w0", "ladder_ms": [], "ok_count": number}
        self._add("rollup", f"{self._seed}-rollup-{number}", 0, 0, at, more)
        self.rows[-1]["task_id"] = None

    def _copies(self) -> None:
        """Repeat some events, as crashes do: with the same id, at another time, by another worker."""
        for row in self._random.sample(self.rows, len(self.rows) // 15):
            later = row["occurred_at"] + timedelta(seconds=self._random.choice([0, 0, 20, -20]))
            self.rows.append({**row, "occurred_at": self._kept(later), "worker": f"w{self._random.randrange(4)}"})

    def _spoil(self) -> None:
        for number, change in enumerate(self._random.sample(BAD, self._random.randint(0, 10))):
            row = self._random.choice(self.rows)
            self.rows.append({**row, "event_id": f"{self._seed}-bad-{number}", **change})
        if self._is(0.3):
            row = {**self._random.choice(self.rows), "kind": "exhausted", "task_id": None, "reason": "undecodable"}
            if row["event_id"] and not str(row["event_id"]).startswith(f"{self._seed}-bad"):
                self.rows.append({**row, "event_id": f"{self._seed}-undecodable", "attempt": 0, "ok_count": None})

    def _add(self, kind: str, task_id: str, generation: int, attempt: int, at: datetime, more: Row) -> None:
        """Add an event, unless it is one of those that are lost."""
        if kind != "rollup" and self._is(0.06):
            return
        row: Row = dict.fromkeys(EVENTS.names)
        act = f":{more.get('reason')}" if kind in ("requeued", "discarded") else ""
        row |= {"event_id": event_id(task_id, generation, attempt, kind + act), "kind": kind, "task_id": task_id}
        row |= {"generation": generation, "attempt": attempt, "occurred_at": self._kept(at), "crashes": 0}
        self.rows.append(row | more)

    def _at(self, seconds: float, worker: str) -> datetime:
        """Return the time that a worker's clock shows."""
        return self._start + timedelta(microseconds=round((seconds + self._skew[worker]) * 1e6))

    def _kept(self, moment: datetime) -> datetime:
        """Keep a time within the days of this history, despite skewed clocks and long ladders."""
        end = self._start + timedelta(days=DAYS) - timedelta(microseconds=1)
        return max(self._start, min(end, moment))
