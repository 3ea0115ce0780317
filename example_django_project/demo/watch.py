"""Observe the broker, the result backend, the database and the partners from outside."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from celery import Celery
from celery_rmq_delay import ladders as tiers
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.contrib.django.models import FailureGroup, InsightRun, TaskRecord, TaskState
from celery_rmq_delay.durations import format_ms
from celery_rmq_delay.operations.exhausted import list_exhausted
from celery_rmq_delay.operations.status import read_status
from django.db.models import Count

from orders.models import Order

from .partners import MailServer, PaymentGateway
from .reconcile import Balance, Evidence, Sent, reconcile

QUEUES = ("payments", "mail", "default")
#: Seconds between two reads of the exhausted queue while its length stays the same.
_EXHAUSTED_EVERY = 10.0


@dataclass(frozen=True)
class Tier:
    """One tier of a ladder and how many tasks are parked in it."""

    delay: str
    parked: int


@dataclass(frozen=True)
class Ladder:
    """The present state of a ladder of a queue or a task."""

    name: str
    ready: int | None
    tiers: list[Tier]

    @property
    def parked(self) -> int:
        """How many tasks are parked in all its tiers."""
        return sum(tier.parked for tier in self.tiers)


@dataclass(frozen=True)
class Seen:
    """The result of one observation."""

    ladders: list[Ladder]
    exhausted: int
    balance: Balance
    charged_unpaid: int

    @property
    def parked(self) -> int:
        """How many tasks are parked in total."""
        return sum(ladder.parked for ladder in self.ladders)

    @property
    def waiting(self) -> int:
        """How many tasks are in queues: parked, or ready for a worker."""
        return self.parked + sum(ladder.ready or 0 for ladder in self.ladders)


class Watch:
    """Observer with a connection and a cache of states that cannot change any more."""

    def __init__(self, app: Celery, gateway: PaymentGateway, mail: MailServer) -> None:
        self.app, self.gateway, self.mail = app, gateway, mail
        self.delay = state_of(app)
        self._succeeded: dict[str, int] = {}
        self._in_queue: dict[str, list[str]] = {}
        self._exhausted_length, self._exhausted_at = 0, 0.0
        self._connection = app.connection_for_read()

    def close(self) -> None:
        """Close the connection."""
        self._connection.release()

    def observe(self, sent: list[Sent], *, thoroughly: bool = False) -> Seen:
        """Return the present state. ``thoroughly`` reads the exhausted queue even if its length is the same."""
        paid = dict(Order.objects.filter(status=Order.Status.PAID).values_list("reference", "payment_retries"))
        # A paid order sends its receipt from the worker, so the expected receipts are known only from the database.
        receipts = [
            Sent("send_receipt", f"receipt-{task.reference}", task.reference) for task in sent if task.reference in paid
        ]
        everything = [*sent, *receipts]
        ladders, exhausted = self._queues()
        changed = exhausted != self._exhausted_length
        if thoroughly or changed or time.monotonic() - self._exhausted_at > _EXHAUSTED_EVERY:
            self._in_queue = self._read_exhausted()
            self._exhausted_length, self._exhausted_at = exhausted, time.monotonic()
        # The collector commits before it acks: messages that have left the queue are in the table.
        collected = self._read_collected()
        in_queue = {task_id: reasons for task_id, reasons in self._in_queue.items() if task_id not in collected}
        self._read_results([task.task_id for task in everything if task.task_id not in self._succeeded])
        with self.gateway.lock, self.mail.lock:
            charged = set(self.gateway.ledger)
            mailed = {name.removeprefix("receipt-"): count for name, count in self.mail.delivered.items()}
        found = Evidence(
            succeeded=self._succeeded, exhausted={**in_queue, **collected}, paid=paid, charged=charged, mailed=mailed
        )
        return Seen(
            ladders=ladders,
            exhausted=len(in_queue) + len(collected),
            balance=reconcile(everything, found),
            charged_unpaid=len(charged - set(paid)),
        )

    def _queues(self) -> tuple[list[Ladder], int]:
        status = read_status(self.app, self._connection, QUEUES)
        found = []
        for name in QUEUES:
            queue = next(each for each in status.queues if each.queue == name)
            parked = {(tier.tier_index, tier.delay_ms): tier.parked for tier in queue.tiers}
            plan = self.delay.plan(name, reason_routing=True)
            found.append(_ladder(name, queue.ready or 0, plan.ladder, parked))
            own = {task: ladder for task, ladder in plan.tasks.items() if ladder is not None}
            found += [_ladder(f"  {task.rpartition('.')[2]}", None, each, parked) for task, each in own.items()]
        return found, status.exhausted or 0

    def _read_exhausted(self) -> dict[str, list[str]]:
        """Return the reasons by task id. Reads the messages and leaves them in the queue."""
        found: dict[str, list[str]] = {}
        for message in list_exhausted(self._connection, self.delay.settings).done:
            found.setdefault(str(message.task_id), []).append(message.reason or "")
        return found

    def _read_collected(self) -> dict[str, list[str]]:
        """Return the reasons by task id of messages that the collector has moved into the database."""
        rows = TaskRecord.objects.filter(state=TaskState.EXHAUSTED).values_list("task_id", "reason")
        return {task_id: [reason] for task_id, reason in rows}

    def _read_results(self, task_ids: list[str]) -> None:
        backend = self.app.backend
        for start in range(0, len(task_ids), 500):
            some = task_ids[start : start + 500]
            for task_id, raw in zip(some, backend.mget([backend.get_key_for_task(each) for each in some]), strict=True):
                meta = backend.decode_result(raw) if raw else {}
                if meta.get("status") == "SUCCESS":
                    self._succeeded[task_id] = int(meta.get("retries") or 0)


@dataclass(frozen=True)
class Collected:
    """The contents of the admin's tables: retried tasks by `TaskState`, and the groups of their failures."""

    states: Mapping[str, int]
    groups: int

    def agrees_with(self, balance: Balance) -> bool:
        """Return whether the numbers of recovered and exhausted tasks agree with the other systems."""
        rows = balance.rows.values()
        recovered, exhausted = sum(row.recovered for row in rows), sum(row.gave_up + row.exhausted for row in rows)
        found = self.states.get(TaskState.RECOVERED, 0), self.states.get(TaskState.EXHAUSTED, 0)
        return found == (recovered, exhausted)


def collected() -> Collected:
    """Return what the collector has written so far."""
    counted = TaskRecord.objects.order_by().values_list("state").annotate(Count("pk"))
    return Collected(dict(counted), FailureGroup.objects.count())


def insights() -> dict[str, int]:
    """Return the counts of the analytics' results, by kind."""
    run = InsightRun.objects.get()
    return {
        "curves": len(run.rows["recovery_curve"]),
        "tiers": len(run.rows["tier_outcomes"]),
        "incidents": len(run.rows["incidents"]),
        "ladders": len(run.rows["ladder_advice"]),
    }


def _ladder(name: str, ready: int | None, ladder: tiers.Ladder, parked: Mapping[tuple[int, int], int]) -> Ladder:
    tiers = [
        Tier(format_ms(delay), parked.get((tier_index, delay), 0))
        for tier_index, delay in enumerate(ladder.tiers_ms, 1)
    ]
    return Ladder(name, ready, tiers)
