"""Move a queue from one ladder to another while workers use both.

A key must be bound to exactly one tier at any time: with two a message would return twice, with none it would be lost.
RabbitMQ cannot swap a binding in one step, so the swap uses an alternate exchange, the standby exchange:

    active  --(binding)--> old ladder    unbind: messages fall to standby, which still leads to the old ladder
    standby --(binding)--> old ladder    bind active to the new ladder; now no message reaches standby, and it follows

The record names a step *before* it is taken, so the next process finishes a step that a crash interrupted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import replace
from typing import Any

from kombu import Connection

from ..amqp import apply
from ..amqp.apply import Drift, declare_queue, drift
from ..amqp.objects import Binding, Exchange, Objects, arguments
from ..amqp.record import Record, locked_record
from ..commands import command
from ..exceptions import LockLostError, TopologyError
from .applied import UNDER_WAY, Adoption, Applied
from .common import safety_net
from .ladder import LadderPlan

logger = logging.getLogger(__name__)

_NO_REJECTIONS = ("delivery_limit", "expired", "maxlen")


def apply_plan(
    connection: Connection, plan: LadderPlan, lock_timeout: float = 30.0, *, quick: bool = False, reset: bool = False
) -> bool:
    """Apply ``plan`` to the broker; return whether the ladder in force changed.

    Safe beside other workers and other versions of the app, and after a crash at any step. Waits at most
    ``lock_timeout`` seconds for other processes that apply, then raises `LockTimeoutError`. ``quick``: where all
    objects exist and this very plan is recorded as bound, bind only the origin queue and the exhausted queue again
    (RabbitMQ 4.3 needs 0.7 ms for every existing binding): other clients may have deleted and declared them, which
    removed their bindings. The other objects lose bindings only by manual changes. ``reset``: where the record is lost,
    replace the ladders in force; raises `TopologyError` while the queue has consumers. Where the broker takes the lock
    back in a change, the ladder of the next process stays in force, and `LockLostError` is raised.
    """
    try:
        return _apply(connection, plan, lock_timeout, quick=quick, reset=reset)
    except LockLostError:
        _restore(connection, plan, lock_timeout)
        raise


def _restore(connection: Connection, plan: LadderPlan, timeout: float) -> None:
    """Undo a step that was taken when the lock was lost: restore what the record names, and nothing else."""
    with locked_record(connection, plan.record_queue(), timeout) as (_, record):
        found = recorded(connection, plan, record)
        if found.phase == "settled":
            objects = plan.objects(found.highest_tier).without([plan.quarantine_queue()])
            record.declare(objects + Objects(bindings=tuple(_settled(plan, found))) + _marker(plan, found))
            record.unbind(*other_bindings(plan, found))


def _apply(connection: Connection, plan: LadderPlan, lock_timeout: float, *, quick: bool, reset: bool) -> bool:
    apply.ensure_queue(connection, plan.exhausted_queue())
    quarantine = plan.quarantine_queue()  # shared with workers of another prefix
    with locked_record(connection, plan.record_queue(), lock_timeout) as (_, record):
        if reset and record.value is None:
            _reset(connection, plan, record)
        before = recorded(connection, plan, record)
        objects = plan.objects(before.highest_tier)
        expected = objects + _marker(plan, before)
        if quick and before.bound == _digest(plan, objects) and apply.all_exist(connection, expected):
            known = (*objects.bindings, *_reason_bindings(plan)[0])
            of_others = (plan.queue, plan.exhausted)
            bindings = tuple(each for each in known if each.to == "queue" and each.destination in of_others)
            record.declare(replace(objects, bindings=bindings).without([quarantine]))
            return False
        for unknown in plan.ladders.keys() - before.ladders.keys():
            # A ladder of a lost record may lead to another exhausted queue, too.
            record.delete_exchange(plan.names.ladder(plan.queue, unknown))
        complete = ensure_quarantine(connection, plan, record)
        record.declare(objects.without([quarantine]))
        transition = _Transition(plan, record, before)
        transition.run(complete=complete)
        return transition.applied.current != before.current or before.tasks != transition.applied.tasks


def save_adoption(connection: Connection, plan: LadderPlan, adoption: Adoption, timeout: float = 30.0) -> Adoption:
    """Save ``adoption`` in the queue's record, as its next generation. Raises `LockTimeoutError`, `TopologyError`."""
    with locked_record(connection, plan.record_queue(), timeout) as (_, record):
        before = recorded(connection, plan, record)
        saved = replace(adoption, generation=(before.adoption.generation if before.adoption else 0) + 1)
        record.save(replace(before, adoption=saved).to_json())
    return saved


def recorded(connection: Connection, plan: LadderPlan, record: Record) -> Applied:
    """Return the ladders in force from the record; where there is none, write one first.

    So a crash in the apply that follows does not look like a lost record. Raises `TopologyError` where other ladders
    are in force than those of ``plan``, which would be bound beside them, and each rejected message parked in both.
    """
    if record.value is None:
        found = unrecorded(connection, plan)
        if found.is_lost:
            raise TopologyError(" ".join(lost_record(plan)))
        if found.current is None and apply.all_exist(connection, plan.active_exchange):
            for exchange in _in_order_of_deletion(plan):
                record.delete_exchange(exchange)
        record.save(found.to_json())
    return Applied.from_json(record.value)


def unrecorded(connection: Connection, plan: LadderPlan) -> Applied:
    """Return the ladders in force without a record: none or only exchanges, those of ``plan``, or others (`lost`)."""
    if not apply.all_exist(connection, plan.active_exchange):
        return Applied()
    own = {task: [ladder.id] for task, ladder in plan.tasks.items() if ladder}
    found = Applied(plan.ladders, current=plan.ladder.id, tasks=own, exhausted=plan.exhausted)
    if apply.all_exist(connection, _marker(plan, found)):
        return found
    return Applied() if _has_no_queues(connection, plan) else Applied(phase="lost")


def _has_no_queues(connection: Connection, plan: LadderPlan) -> bool:
    """Return whether the queues of a queue's ladders were deleted: no message can be parked, or wait in two of them.

    The delay queues of an unknown ladder cannot be found. Each ladder has the quarantine queue, which is never deleted
    alone: not with the record, and not by a policy, as it has no other arguments than its origin queue.
    """
    plans = (plan, plan.of_other_type)
    delays = {queue.name for each in plans for _, _, queue in each.delay_queues(each.ladders.values())}
    known = apply.ready_counts(connection, [plan.quarantine_queue().name, *sorted(delays)])
    return all(count is None for count in known.values()) and not apply.consumer_count(connection, plan.queue)


def _in_order_of_deletion(plan: LadderPlan) -> list[str]:
    """Return the exchanges in force, the active one last: it shows the next process that a record is lost."""
    active = plan.active_exchange.exchanges
    return [each.name for each in sorted(plan.routing_exchanges, key=active.__contains__)]


def _reset(connection: Connection, plan: LadderPlan, record: Record) -> None:
    """Delete the exchanges in force if the record is lost; messages that are rejected meanwhile are lost."""
    if not unrecorded(connection, plan).is_lost:
        return
    origin = apply.inspect_queue(connection, plan.queue)
    if origin is not None and origin.consumer_count:
        raise TopologyError(
            f"Queue {plan.queue!r} is consumed (consumers: {origin.consumer_count}): stop all its workers first, "
            "and wait until they have ended. Messages that they reject while the ladder is replaced would be lost."
        )
    record.declare(Objects(plan.routing_exchanges))  # refused before anything is deleted
    for exchange in _in_order_of_deletion(plan):
        record.delete_exchange(exchange)


def lost_record(plan: LadderPlan) -> tuple[str, str]:
    """Return (problem, hint) of a lost record, for display."""
    queue = plan.queue
    found = (
        f"The record of the ladder of queue {queue!r} is gone from {plan.record_queue().name}, and the ladder in force "
        "differs from these settings: it cannot be replaced, as retries would wait in both."
    )
    hint = (
        f"Stop all workers of {queue!r} and run `{command(f'apply --reset --queue {queue}')}`; or, if the "
        "settings have changed, restore the applied ones. Find out what removed the record: a purge, or a "
        "policy with message-ttl, expires or max-length."
    )
    return found, hint


def _marker(plan: LadderPlan, applied: Applied) -> Objects:
    """Return an exchange, deleted with the active one, that exists only while these ladders are in force."""
    if applied.current is None:
        return Objects()
    text = json.dumps([applied.current, applied.tasks, applied.exhausted], sort_keys=True)
    marker = Exchange(plan.names.marker(plan.queue, _short(text)), "fanout", auto_delete=True)
    return Objects((marker,), (), (Binding(marker.name, plan.names.active(plan.queue), to="exchange"),))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(plan: LadderPlan, objects: Objects) -> str:
    tasks = {task: ladder.id if ladder else None for task, ladder in plan.tasks.items()}
    bindings = sorted(map(repr, objects.bindings))
    return _short(json.dumps([bindings, plan.ladder.id, tasks, plan.exhausted, plan.reason_routing], sort_keys=True))


def planned_bindings(plan: LadderPlan, applied: Applied) -> list[Binding]:
    """Return every binding that the broker has where ``plan`` is applied, according to the record ``applied``."""
    return [*plan.objects(applied.highest_tier).bindings, *_reason_bindings(plan)[0], *_settled(plan, applied)]


def _reason_bindings(plan: LadderPlan) -> tuple[list[Binding], list[Binding]]:
    """Return the bindings that route by the reason of dead-lettering: (of this broker, of another version)."""
    names, queue, exhausted = plan.names, plan.queue, plan.exhausted
    rejected = Binding(
        names.dlx(queue),
        names.tasks(queue),
        to="exchange",
        declared=arguments({"x-match": "all-with-x", "x-last-death-reason": "rejected"}),
    )
    ending_first = [
        Binding(
            names.dlx(queue),
            exhausted,
            declared=arguments({"x-match": "all-with-x", "x-first-death-queue": queue, "x-first-death-reason": reason}),
        )
        for reason in _NO_REJECTIONS
    ]
    advancing = Binding(names.other(queue), names.tasks(queue), to="exchange")
    ending = Binding(names.other(queue), exhausted)
    if plan.reason_routing:
        return [rejected, ending], [advancing, *ending_first]
    return [*ending_first, advancing], [ending]


def _settled(plan: LadderPlan, applied: Applied) -> list[Binding]:
    if applied.current is None:
        return []
    return [
        plan.from_active(applied.current),
        plan.from_standby(applied.current),
        *(plan.from_tasks(task, each) for task, ids in applied.tasks.items() for each in ids),
    ]


def other_bindings(plan: LadderPlan, applied: Applied) -> list[Binding]:
    """Return the bindings to ladders of the record that it does not name, which double messages; none in a change."""
    if applied.current is None or applied.phase != "settled":
        return []
    tasks = {*plan.tasks, *applied.tasks}
    possible = [
        each
        for ladder in applied.ladders
        for each in (plan.from_active(ladder), plan.from_standby(ladder), *(plan.from_tasks(t, ladder) for t in tasks))
    ]
    settled = _settled(plan, applied)
    return [each for each in possible if each not in settled]


class _Transition:
    def __init__(self, plan: LadderPlan, record: Record, applied: Applied) -> None:
        self.plan, self.record, self.applied = plan, record, applied

    def run(self, *, complete: bool) -> None:
        """Take all steps; the record gets ``bound`` only where all objects are ``complete``, too."""
        self._save(ladders={**self.applied.ladders, **self.plan.ladders})
        for marker in _marker(self.plan, self.applied).exchanges:
            self.record.delete_exchange(marker.name)
        self._route_reasons()
        self._leave_exhausted()
        if self.applied.phase != "settled":
            self._finish()
        if self.applied.current != self.plan.ladder.id:
            if self.applied.current is None:
                self._bind_standby(self.plan.ladder.id)
            self._save(following=self.plan.ladder.id, phase="current")
            self._finish()
        self._tasks()
        # An exchange may have been deleted with its bindings; a process that had lost the lock may have bound others.
        self._bind(*_settled(self.plan, self.applied))
        self.record.unbind(*other_bindings(self.plan, self.applied))
        in_force, now = self.applied.in_force, time.time()
        retired = {key: self.applied.retired.get(key, now) for key in self.applied.ladders if key not in in_force}
        self._save(retired=retired, exhausted=self.plan.exhausted)
        self.record.declare(_marker(self.plan, self.applied))
        bound = _digest(self.plan, self.plan.objects(self.applied.highest_tier))
        self._save(bound=bound if complete else None)

    def _bind(self, *bindings: Binding) -> None:
        self.record.declare(Objects(bindings=bindings))

    def _leave_exhausted(self) -> None:
        """Unbind the previous exhausted queue: exhausted messages would go to both."""
        old = self.applied.exhausted
        if old in (None, self.plan.exhausted):
            return
        there, highest = replace(self.plan, exhausted=old), self.applied.highest_tier
        ladders = [there.ladder_objects(each, highest).bindings for each in self.applied.ladders.values()]
        shared = safety_net(there.names, old).bindings
        for binding in (each for bindings in (*ladders, *_reason_bindings(there), shared) for each in bindings):
            if binding.destination == old:
                self.record.unbind(binding)

    def _save(self, **changes: Any) -> None:
        """Write the record if it changes, always before the step that it names."""
        changed = replace(self.applied, **changes)
        if changed != self.applied:
            changed = replace(changed, bound=changes.get("bound"))
            self.record.save(changed.to_json())
            self.applied = changed

    def _route_reasons(self) -> None:
        """Route rejected messages to the ladder, and all others to the exhausted queue.

        RabbitMQ drops a message that returns without a rejection as a cycle. RabbitMQ >= 3.13 reports the reason of the
        last death. Older versions report the first one, and a message that was rejected first may advance after any
        later death, as the rejection in its history prevents the drop.
        """
        wanted, unwanted = _reason_bindings(self.plan)
        if self.applied.reason_routing != self.plan.reason_routing:
            self._save(bound=None)
        self._bind(*wanted)
        if self.applied.reason_routing != self.plan.reason_routing:
            # Bind before unbind: for a moment a message in a crash loop may be duplicated, but none is lost.
            for binding in unwanted:
                self.record.unbind(binding)
            self._save(reason_routing=self.plan.reason_routing)

    def _finish(self) -> None:
        target = self.applied.following
        if target is None:
            return
        if self.applied.phase == "current":
            for ladder in self.applied.ladders:
                if ladder != target:
                    self.record.unbind(self.plan.from_active(ladder))
            self._bind(self.plan.from_active(target))
            self._save(phase="standby")
        self._bind_standby(target)
        self._save(current=target, following=None, phase="settled")

    def _bind_standby(self, target: str) -> None:
        for ladder in self.applied.ladders:
            if ladder != target:
                self.record.unbind(self.plan.from_standby(ladder))
        self._bind(self.plan.from_standby(target))

    def _tasks(self) -> None:
        """Bind tasks to their own ladders; messages of an unbound task advance through the queue's ladder."""
        for task, ladder in self.plan.tasks.items():
            wanted = [ladder.id] if ladder else []
            known = self.applied.tasks.get(task, [])
            if known == wanted:
                continue
            self._save(tasks={**self.applied.tasks, task: list(dict.fromkeys([UNDER_WAY, *known, *wanted]))})
            for old in known:
                if old not in (UNDER_WAY, *wanted):
                    self.record.unbind(self.plan.from_tasks(task, old))
            for new in wanted:
                self._bind(self.plan.from_tasks(task, new))
            self._save(tasks={**{name: ids for name, ids in self.applied.tasks.items() if name != task}, task: wanted})
        self._save(tasks={task: ids for task, ids in self.applied.tasks.items() if ids})


def ensure_quarantine(connection: Connection, plan: LadderPlan, record: Record) -> bool:
    """Declare the quarantine queue; return False while one of the other type has messages or a consumer."""
    wanted, other = plan.quarantine_queue(), plan.of_other_type.quarantine_queue()
    if declare_queue(connection, wanted) or not declare_queue(connection, other):
        return True
    if record.delete_unused(connection, other) and declare_queue(connection, wanted):
        return True
    text = (
        "The queue %s is not a %s queue yet: it has messages or a consumer. It is used as it is, until an "
        "apply or a worker start finds it empty and unused, and replaces it"
    )
    logger.info(text, wanted.name, plan.queue_type, extra={"queue": plan.queue})
    return False


def to_replace(connection: Connection, plan: LadderPlan) -> tuple[Drift, ...]:
    """Return the record and the quarantine queue where they have the other type. Changes nothing."""
    other = plan.of_other_type
    return tuple(
        Drift("queue", wanted.name, f"It is a {other.queue_type} queue. An apply replaces it{when}.")
        for wanted, found, when in (
            (plan.record_queue(), other.record_queue(), ""),
            (plan.quarantine_queue(), other.quarantine_queue(), " when it is empty and no worker consumes it"),
        )
        if drift(connection, Objects(queues=(wanted,))) and not drift(connection, Objects(queues=(found,)))
    )
