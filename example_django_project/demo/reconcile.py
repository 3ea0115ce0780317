"""Account for every task: compare the broker, the result backend, the database and the partners. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sent:
    """A task that was sent; ``reference`` is that of its order, if it belongs to one."""

    kind: str
    task_id: str
    reference: str | None = None


@dataclass(frozen=True)
class Evidence:
    """The state found in each system.

    ``succeeded``: task id -> retries it took (result backend). ``exhausted``: task id -> the reason of each message in
    the exhausted queue. ``paid``: reference of a paid order -> retries its payment took (database). ``charged``:
    references that the gateway has charged. ``mailed``: reference -> receipts that the mail server delivered.
    """

    succeeded: Mapping[str, int] = field(default_factory=dict)
    exhausted: Mapping[str, list[str]] = field(default_factory=dict)
    paid: Mapping[str, int] = field(default_factory=dict)
    charged: AbstractSet[str] = frozenset()
    mailed: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Row:
    """The outcomes of one kind of task."""

    kind: str
    sent: int = 0
    first_try: int = 0
    recovered: int = 0
    gave_up: int = 0
    exhausted: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def settled(self) -> int:
        """How many tasks ended, in any way."""
        return self.first_try + self.recovered + self.gave_up + self.exhausted


@dataclass
class Balance:
    """The outcomes of everything that was sent. ``problems`` lists inconsistencies.

    ``orders`` has the same for the orders, by the database instead of the result backend.
    """

    rows: dict[str, Row]
    orders: Row
    problems: list[str]

    @property
    def holds(self) -> bool:
        """Whether everything is accounted for exactly once, and all systems agree."""
        return not (self.missing or self.orders.missing or self.problems)

    @property
    def missing(self) -> list[str]:
        """The ids of tasks that were not found in any system."""
        return [task_id for row in self.rows.values() for task_id in row.missing]

    @property
    def sent(self) -> int:
        """How many tasks were sent."""
        return sum(row.sent for row in self.rows.values())

    @property
    def settled(self) -> int:
        """How many ended."""
        return sum(row.settled for row in self.rows.values())


#: Why a task is in the exhausted queue although it has retries left.
GAVE_UP = "gave_up"


def reconcile(sent: Iterable[Sent], found: Evidence) -> Balance:
    """Return the outcomes of the tasks ``sent``. A task is settled when it succeeded or is in the exhausted queue."""
    balance = Balance(rows={}, orders=Row("orders"), problems=[])
    for task in sent:
        row = balance.rows.setdefault(task.kind, Row(task.kind))
        _count(row, task.task_id, found.succeeded.get(task.task_id), found)
        if task.kind == "charge" and task.reference is not None:
            _count(balance.orders, task.task_id, found.paid.get(task.reference), found)
        balance.problems += _problems(task, found)
    return balance


def _count(row: Row, task_id: str, retries: int | None, found: Evidence) -> None:
    row.sent += 1
    if retries is not None:
        if retries:
            row.recovered += 1
        else:
            row.first_try += 1
    elif task_id in found.exhausted:
        if found.exhausted[task_id][0] == GAVE_UP:
            row.gave_up += 1
        else:
            row.exhausted += 1
    else:
        row.missing.append(task_id)


def _problems(task: Sent, found: Evidence) -> list[str]:
    problems = []
    copies = len(found.exhausted.get(task.task_id, []))
    if copies and task.task_id in found.succeeded:
        problems.append(f"{task.task_id} succeeded and is exhausted")
    if copies > 1:
        problems.append(f"{task.task_id} is {copies} times in the exhausted queue")
    if task.kind == "charge" and task.reference is not None:
        paid, charged = task.reference in found.paid, task.reference in found.charged
        if task.task_id in found.succeeded and not (paid and charged):
            problems.append(f"{task.task_id} succeeded, but its order is {'not charged' if paid else 'not paid'}")
        if paid and task.task_id in found.exhausted:
            problems.append(f"order {task.reference} is paid, but its payment is exhausted")
    if task.kind == "send_receipt" and task.task_id in found.succeeded and not found.mailed.get(str(task.reference)):
        problems.append(f"{task.task_id} succeeded, but the mail server has no such mail")
    return problems
