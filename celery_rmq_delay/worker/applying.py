"""Ladders that cannot be applied when a worker connects: whether to consume their queues, and repeated attempts.

In an alarm RabbitMQ accepts no publish, and so no change of a record; another process may hold the record for long. A
ladder that was applied before stays in force.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kombu import Connection

from ..amqp.apply import Drift, all_exist, drift
from ..amqp.capabilities import Capabilities
from ..amqp.connections import beside
from ..amqp.link import Backoff
from ..amqp.record import read_record_without_publishing
from ..app.inventory import applied
from ..app.queues import compare
from ..app.state import AppState
from ..commands import command
from ..exceptions import RmqDelayError, TopologyError
from ..names import quarantine
from ..topology.applied import Applied
from ..topology.ladder import LadderPlan
from ..topology.native_retry import refusal
from ..topology.transition import apply_plan
from .confirming import ConfirmingConnection

logger = logging.getLogger(__name__)

#: Seconds to wait for a record that another process holds: for the first apply of a ladder, and for later ones.
_PATIENCE, _LITTLE_PATIENCE = 30.0, 5.0


def plan_of(delay: AppState, queue: str, broker: Capabilities) -> LadderPlan:
    """Return the plan of a queue's ladder for a broker."""
    return delay.plan(queue, reason_routing=broker.reports_death_reason)


def apply_ladder(connection: Connection, delay: AppState, queue: str, broker: Capabilities, *, known: bool) -> None:
    """Apply the ladder of a queue; where settings forbid that, raise `TopologyError` if it is not there. Blocks.

    ``known``: this process has applied it before.
    """
    compare(delay.app, queue, connection)
    quorum = delay.is_quorum(queue) and delay.queue_type(queue) == "quorum"
    if delay.has_native_retry(queue) and (refused := refusal(queue, broker, quorum=quorum)):
        raise TopologyError(refused)
    plan = plan_of(delay, queue, broker)
    if delay.settings.apply_on_start:
        if apply_plan(connection, plan, _LITTLE_PATIENCE if known else _PATIENCE, quick=True):
            logger.info("Applied the ladder of queue %s", queue, extra={"queue": queue})
    elif missing := _missing(connection, plan):
        raise TopologyError(not_as_planned(f"Queue {queue!r}", missing))
    if queue in delay.differing:
        _read_adoption(connection, delay, plan)
    else:
        delay.adopted.pop(queue, None)
    if delay.settings.apply_on_start:
        delay.exact.bind(connection, queue)


def _read_adoption(connection: Connection, delay: AppState, plan: LadderPlan) -> None:
    adoption = applied(connection, plan).adoption
    delay.learn(plan.queue, adoption)
    if adoption is not None and adoption.in_force:
        text = "Queue %s is adopted by the policy %s: its failed tasks are rejected"
        logger.info(text, plan.queue, adoption.policy, extra={"queue": plan.queue})


def _missing(connection: Connection, plan: LadderPlan) -> list[Drift]:
    own = quarantine(plan.queue)  # declared by the first process
    return [each for each in drift(connection, plan.objects()) if each.name != own or each.problem == "missing"]


def not_as_planned(what: str, missing: list[Drift]) -> str:
    """Return the text of the error that objects in the broker are not as planned."""
    listed = ", ".join(f"{each.kind} {each.name} ({each.problem})" for each in missing[:5])
    return (
        f"{what}: {len(missing)} objects are not as planned: {listed}. Messages would be lost: run "
        f"`{command('apply')}`, or set apply_on_start=True."
    )


def ladder_in_force(connection: Connection, plan: LadderPlan, *, known: bool = False) -> Applied | None:
    """Return the record if rejected messages of a queue already have a ladder, else None. Publishes nothing.

    That may be another ladder than the plan's, or a change in progress: a change leaves no message without a ladder at
    any step. ``known``: this process has applied the plan, so the record is not read.
    """
    if known:
        return Applied() if all_exist(connection, plan.objects()) else None
    found = Applied.from_json(read_record_without_publishing(connection, plan.record_queue()))
    current = found.ladders.get(found.current or "")
    if current is None:
        return None
    tasks = {task: found.ladders.get(ladders[-1]) for task, ladders in found.tasks.items() if ladders}
    there = replace(plan, ladder=current, tasks=tasks)
    return found if all_exist(connection, there.objects(found.highest_tier)) else None


@dataclass(frozen=True)
class Step:
    """A step that a worker applies: its name, the action on an open connection, and a callback in the event loop."""

    what: str
    act: Callable[[Connection], None]
    done: Callable[[], None]


class Applying:
    """Retries steps with back-off in a thread until each is done; pauses while the broker is known to have an alarm."""

    def __init__(self, consumer: Any, publisher: ConfirmingConnection) -> None:
        self._consumer, self._source, self._publisher = consumer, consumer.connection, publisher
        self._lock = threading.Lock()
        self._due: dict[str, Step] = {}
        self._backoff = Backoff()
        #: Set when a new step is due, or when to stop.
        self._news = threading.Event()
        self._stopped = self._runs = False

    def later(self, step: Step) -> None:
        """Try a step in about a second, and again until it is done."""
        self._publisher.probe()
        with self._lock:
            if step.what not in self._due:
                self._backoff.reset()
                self._news.set()
            self._due[step.what] = step
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="rmq-delay-applying", daemon=True).start()

    def stop(self) -> None:
        """Stop trying. A step in progress may still take effect in the broker, which is harmless."""
        self._stopped = True
        self._news.set()

    def _run(self) -> None:
        while not self._stopped:
            if self._news.is_set():
                self._news.clear()
            elif not self._news.wait(self._backoff.pause()) and not self._publisher.is_blocked:
                for step in list(self._due.values()):
                    self._try(step)
            with self._lock:
                if not self._due:
                    self._runs = False
                    return

    def _try(self, step: Step) -> None:
        try:
            with beside(self._source) as connection:
                step.act(connection)
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            if not self._stopped:
                logger.warning("%s cannot be applied yet: %s", step.what, str(error) or repr(error))
                self._consumer.call_soon(self._publisher.probe)
            return
        with self._lock:
            if self._due.get(step.what) is step:
                del self._due[step.what]
        self._consumer.call_soon(self._finish, step)

    def _finish(self, step: Step) -> None:
        if not self._stopped:
            try:
                step.done()
            except RmqDelayError as error:
                logger.warning("%s cannot be used yet: %s", step.what, error)
                self.later(step)
            else:
                logger.info("%s is applied", step.what)
