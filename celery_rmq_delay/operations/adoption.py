"""Adopt an existing queue without our dead-letter arguments by a policy, while workers use it; and detach it.

A rejected message without a dead-letter exchange is lost, so the policy is written before any worker rejects, and
deleted only after all workers have stopped rejecting:

    adopt:  ladder -> policy -> seen in effect -> record -> workers
    undo:   record -> workers, every consumer has replied -> no dead letters in transit -> policy

After a crash between any two steps the policy exists, and workers reject or not: both are safe, and the same command
continues from there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from kombu import Connection

from ..amqp.apply import consumer_count
from ..amqp.capabilities import capabilities
from ..app.inventory import applied, plans
from ..app.state import AppState
from ..commands import command
from ..exceptions import AdoptionError
from ..management.client import Management
from ..management.records import (
    DLX,
    Policy,
    PolicyPlan,
    QueueDetail,
    applying,
    effective_limit,
    find_ours,
    plan_policy,
    wanted_keys,
)
from ..topology.applied import COMMAND, Adoption
from ..topology.ladder import LadderPlan
from ..topology.transition import apply_plan, save_adoption
from .results import Result, poll


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds.

    ``effect``: for the broker to show a policy in effect; its statistics are up to ten seconds old. ``answers``: for
    workers. ``settle``: between the last reply and the deletion of a policy, for what workers sent before; a quorum
    queue's count of dead letters is five seconds old.
    """

    effect: float = 30.0
    answers: float = 15.0
    round: float = 1.0
    settle: float = 1.0
    settle_quorum: float = 6.0
    pause: float = 0.2


PATIENCE = Patience()


@dataclass(frozen=True)
class Outcome(Result):
    """The result for one queue.

    ``workers`` maps the workers that consume it to whether they reject now. ``silent`` are the addresses of consumers
    that did not reply (programs that are not workers, workers without remote control or busy in the solo pool), as far
    as the management API lists them; ``unanswered`` is their number.
    """

    queue: str
    policy: str
    rejects: bool
    workers: dict[str, bool] = field(default_factory=dict)
    unanswered: int = 0
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class UndoPlan:
    """What an undo removes: the policy (None if only the record is left), and which policy applies afterwards."""

    queue: str
    policy: Policy | None
    recorded: bool
    base: Policy | None = None

    def __bool__(self) -> bool:
        return self.policy is not None or self.recorded

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "queue": self.queue,
            "deletes": self.policy.name if self.policy else None,
            "definition": dict(self.policy.definition) if self.policy else None,
            "then_applies": self.base.name if self.base else None,
        }


class Adopter:
    """Plan and carry out adoptions and undos for an app's queues, over AMQP and the management API."""

    def __init__(self, delay: AppState, connection: Connection, management: Management) -> None:
        self.delay, self.connection, self.management = delay, connection, management
        self.patience, self.names = PATIENCE, delay.settings.names

    def plan(self, queue: str, *, replace: bool = False) -> PolicyPlan:
        """Return the policy to write. Changes nothing; raises `AdoptionError` if no policy can adopt it."""
        if self.delay.has_native_retry(queue):
            raise AdoptionError(
                f"Queue {queue!r} has the setting retry: native (RabbitMQ's native retry), but an adopted queue needs "
                'a ladder. Set "retry": "ladder" for it, or declare it again.'
            )
        return plan_policy(self.names, self._detail(queue), self.management.policies(), replace=replace)

    def is_adopted(self, plan: PolicyPlan) -> bool:
        """Return whether the planned policy is written, recorded for workers, and in effect."""
        adoption = applied(self.connection, self._ladder(plan.queue)).adoption
        written = adoption is not None and adoption.in_force and _is_as_written(plan.policy, adoption)
        return plan.is_written and written and self._in_effect(plan, self._detail(plan.queue))

    def adopt(self, plan: PolicyPlan) -> Outcome:
        """Write the planned policy and let the workers reject. Idempotent."""
        ladder = self._ladder(plan.queue)
        apply_plan(self.connection, ladder)  # a rejected message needs somewhere to go
        if not plan.is_written:
            self._wait_for_old_statistics(plan)
            self.management.put_policy(plan.policy)
        detail = self._wait_until_in_effect(plan)
        limit = effective_limit(
            detail.arguments.get("x-delivery-limit"),
            detail.policy_definition.get("delivery-limit"),
            capabilities(self.connection).version,
        )
        base = plan.base
        adoption = Adoption(
            in_force=True,
            generation=0,
            queue_type=plan.queue_type,
            delivery_limit=limit,
            policy=plan.policy.name,
            pattern=plan.policy.pattern,
            priority=plan.policy.priority,
            definition=dict(plan.policy.definition),
            base=base.name if base else None,
            base_definition=dict(base.definition) if base else {},
        )
        adoption = save_adoption(self.connection, ladder, adoption)
        return self._outcome(plan.queue, plan.policy.name, adoption, self._notify_workers(plan.queue, adoption))

    def _wait_for_old_statistics(self, plan: PolicyPlan) -> None:
        """Wait until the statistics no longer show an earlier policy of the same name."""
        if plan.present is None:
            poll(self.patience.effect, lambda: self._detail(plan.queue).policy != plan.policy.name, self.patience.pause)

    def _wait_until_in_effect(self, plan: PolicyPlan) -> QueueDetail:
        def inspect() -> QueueDetail | None:
            consumer_count(self.connection, plan.queue)  # wakes an unused classic queue, which emits no statistics
            detail = self._detail(plan.queue)
            return detail if self._in_effect(plan, detail) else None

        found = poll(self.patience.effect, inspect, self.patience.pause)
        if found is None:
            detail = self._detail(plan.queue)
            self._take_back(plan)
            raise AdoptionError(
                f"The policy {plan.policy.name!r} was not in effect after {self.patience.effect:g} s: queue "
                f"{plan.queue!r} has the policy {detail.policy!r}, the operator policy {detail.operator_policy!r} and "
                f"together {dict(detail.policy_definition)}. The change was undone. Check for another policy that "
                "matches the queue with the same priority, and read the broker's log."
            )
        return found

    def _in_effect(self, plan: PolicyPlan, detail: QueueDetail) -> bool:
        wanted = wanted_keys(self.names, plan.queue, plan.queue_type)
        return detail.policy == plan.policy.name and wanted.items() <= detail.policy_definition.items()

    def _take_back(self, plan: PolicyPlan) -> None:
        if plan.present is not None:
            self.management.put_policy(plan.present)
        else:
            self.management.delete_policy(plan.policy.name)

    def plan_undo(self, queue: str) -> UndoPlan:
        """Return what an undo removes; false if there is nothing. Changes nothing.

        Raises `AdoptionError` if the policy differs from the one that was written.
        """
        adoption = applied(self.connection, self._ladder(queue)).adoption
        policies = self.management.policies()
        present = find_ours(self.names, queue, policies)
        if present is not None and adoption is not None and not _is_as_written(present, adoption):
            raise AdoptionError(
                f"The policy {present.name!r} was changed after it was written. Run "
                f"`{command(f'adopt --queue {queue}', self.delay.app)}` to write it again, and then "
                "--undo, or restore it by hand."
            )
        detail = self.management.queue(queue)
        others = [policy for policy in policies if present is None or policy.name != present.name]
        base = applying(others, queue, detail.type, detail.policy) if detail is not None else None
        return UndoPlan(queue, present, adoption is not None and adoption.in_force, base)

    def undo(self, plan: UndoPlan, *, force: bool = False) -> Outcome:
        """Make the workers forward again, and then delete the policy.

        Raises `AdoptionError` if not every consumer of the queue has confirmed, unless ``force``: restart those that
        did not reply first. Messages are safe at that point, as the policy still exists.
        """
        queue, ladder = plan.queue, self._ladder(plan.queue)
        name = self.names.policy(queue)
        detail = self.management.queue(queue)
        known = applied(self.connection, ladder).adoption
        kind = detail.type if detail else known.queue_type if known else "classic"
        blank = Adoption(in_force=False, generation=0, queue_type=kind, policy=name)
        adoption = save_adoption(self.connection, ladder, replace(known or blank, in_force=False))
        answers: dict[str, Any] | None = None
        if detail is not None and detail.arguments.get(f"x-{DLX}") != self.names.dlx(queue):
            # Twice: a starting worker may have read the record before this change and consume only now.
            for _ in range(2):
                answers = self._notify_workers(queue, adoption)
                outcome = self._outcome(queue, name, adoption, answers)
                if outcome.unanswered and not force:
                    raise AdoptionError(_unanswered_text(outcome))
                time.sleep(self.patience.settle_quorum if kind == "quorum" else self.patience.settle)
            self._wait_for_dead_letters(queue)
        if find_ours(self.names, queue, self.management.policies()) == plan.policy and plan.policy is not None:
            self.management.delete_policy(plan.policy.name)
        return self._outcome(queue, name, adoption, answers)

    def _wait_for_dead_letters(self, queue: str) -> None:
        """Wait until a quorum queue has no dead letters left: without at-least-once it would drop them."""

        def none_left() -> bool:
            detail = self.management.queue(queue)
            return detail is None or not detail.dead_letters_waiting

        if not poll(self.patience.effect, none_left, self.patience.pause):
            raise AdoptionError(
                f"Dead letters of queue {queue!r} still wait for a target queue, and would be lost without the policy. "
                f"Workers already forward. Run `{command('doctor', self.delay.app)}`, then --undo again."
            )

    def _ladder(self, queue: str) -> LadderPlan:
        (found,) = plans(self.connection, self.delay, [queue])
        return found

    def _detail(self, queue: str) -> QueueDetail:
        detail = self.management.queue(queue)
        if detail is None:
            raise AdoptionError(
                f"There is no queue {queue!r} in the vhost {self.management.vhost!r}, so there is nothing to adopt. "
                f"Run `{command('apply', self.delay.app)}` to declare it with the dead-letter exchange."
            )
        return detail

    def _notify_workers(self, queue: str, adoption: Adoption) -> dict[str, Any]:
        """Notify all workers; return the replies of those that consume the queue, by name.

        Repeats the broadcast until as many have replied as consume the queue, or the time is over.
        """
        received: dict[str, Any] = {}
        deadline = time.monotonic() + self.patience.answers
        while True:
            replies = self.delay.app.control.broadcast(
                COMMAND,
                arguments={"queue": queue, "adoption": adoption.to_json()},
                connection=self.connection,
                reply=True,
                timeout=self.patience.round,
            )
            received |= {
                name: answer
                for reply in replies or []
                for name, answer in reply.items()
                if answer.get("consumes") and answer["generation"] >= adoption.generation
            }
            if len(received) >= (consumer_count(self.connection, queue) or 0) or time.monotonic() > deadline:
                return received

    def _outcome(self, queue: str, policy: str, adoption: Adoption, answers: dict[str, Any] | None) -> Outcome:
        if answers is None:  # no worker had to be notified
            return Outcome(queue, policy, adoption.in_force)
        workers = {name: bool(answer["rejects"]) for name, answer in sorted(answers.items())}
        agreeing = [name for name, rejects in workers.items() if adoption.in_force or not rejects]
        unanswered = max(0, (consumer_count(self.connection, queue) or 0) - len(agreeing))
        silent: tuple[str, ...] = ()
        if unanswered:
            replied = {answer.get("address") for answer in answers.values()}
            silent = tuple(each for each in self.management.consumers(queue) if each not in replied)
        return Outcome(queue, policy, adoption.in_force, workers, unanswered, silent)


def _is_as_written(policy: Policy, adoption: Adoption) -> bool:
    written = adoption.pattern, adoption.priority, dict(adoption.definition)
    return (policy.pattern, policy.priority, dict(policy.definition)) == written


def _unanswered_text(outcome: Outcome) -> str:
    listed = f" ({', '.join(outcome.silent)})" if outcome.silent else ""
    return (
        f"{outcome.unanswered} consumers of queue {outcome.queue!r} did not confirm that they stopped "
        f"rejecting{listed}. The policy stays, so nothing is lost, and workers that start from now on forward. Restart "
        "those that did not reply and run --undo again; add --force if they are not workers of this app."
    )
