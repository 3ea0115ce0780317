"""Helpers for tests of a change of ladders: three plans, a process that crashes at a step, a routing probe."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import amqp
import kombu
import pytest

from celery_rmq_delay.amqp import apply, record
from celery_rmq_delay.amqp.record import Record, read_record
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import return_key
from celery_rmq_delay.topology.applied import Applied
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers.lab import HOUR, Lab
from tests.support.waiting import wait_for

A = Ladder((HOUR, 2 * HOUR))
B = Ladder((3 * HOUR, 4 * HOUR, 5 * HOUR))
C = Ladder((6 * HOUR,))
TASKS_A = {"stays": Ladder((7 * HOUR,)), "changes": Ladder((8 * HOUR, 9 * HOUR)), "comes": None, "goes": A}
TASKS_B = {"stays": Ladder((7 * HOUR,)), "changes": Ladder((10 * HOUR,)), "comes": Ladder((11 * HOUR,)), "goes": None}
TASKS_C = {"stays": None, "changes": Ladder((8 * HOUR, 9 * HOUR)), "comes": Ladder((12 * HOUR,)), "goes": B}


#: The quick tests crash at every fifth step.
SOME = 5
#: Where a message may come from; 0 is its publisher.
TIER_INDEXES = (0, 1, 3)


class CrashError(Exception):
    """Stands for the end of the process."""


#: The steps of a change: functions by their owner, with access to their channel.
STEPS: tuple[tuple[Any, str, Callable[..., amqp.Channel]], ...] = (
    *((apply, name, lambda channel, *_: channel) for name in ("declare", "unbind")),
    # _drop_older comes after the confirm of the saved value
    *((Record, name, lambda record, *_: record._channel) for name in ("save", "_drop_older")),
    (amqp.Channel, "exchange_delete", lambda channel, *_: channel),
)
#: The steps beside these by which a record is replaced.
MOVING_STEPS = (
    (record, "declare", lambda channel, *_: channel),
    (Record, "_publish", lambda record, *_: record._channel),
    (amqp.Channel, "queue_delete", lambda channel, *_: channel),
)


@contextmanager
def interrupted_at(
    step: int, interrupt: Callable[[amqp.Channel], object], monkeypatch: pytest.MonkeyPatch, *more: Any
) -> Iterator[list[str]]:
    """Call ``interrupt`` before the given step (1 is the first); the steps taken are listed.

    Steps of the interrupt itself do not count.
    """
    taken: list[str] = []
    is_interrupted = False

    def counted(name: str, original: Callable[..., Any], channel_of: Callable[..., amqp.Channel]) -> Any:
        def take(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_interrupted
            if not is_interrupted:
                taken.append(name)
                if len(taken) == step:
                    is_interrupted = True
                    interrupt(channel_of(*args))
                    is_interrupted = False
            return original(*args, **kwargs)

        return take

    with monkeypatch.context() as patch:
        for owner, name, channel_of in (*STEPS, *more):
            patch.setattr(owner, name, counted(name, getattr(owner, name), channel_of))
        yield taken


def _crash(channel: amqp.Channel) -> None:
    channel.connection.transport.sock.close()
    raise CrashError


def crashed_apply(
    lab: Lab, plan: LadderPlan, step: int, monkeypatch: pytest.MonkeyPatch, *more: Any, reset: bool = False
) -> bool:
    """Apply ``plan`` up to the given step; return whether it was cut off there."""
    connection = kombu.Connection(lab.url)
    try:
        with interrupted_at(step, _crash, monkeypatch, *more):
            apply_plan(connection, plan, reset=reset)
    except (CrashError, OSError):
        return True
    finally:
        connection.collect()
    return False


class Probe:
    """Rejects messages of every task from every tier and counts where they arrive."""

    def __init__(self, lab: Lab, *plans: LadderPlan) -> None:
        self.lab, self.plans, self.sent = lab, plans, 0
        self.queue, self.entry = plans[0].queue, lab.exchange("fanout")
        lab.channel.queue_bind(self.queue, self.entry)

    def every_message_arrives_once(self, when: str) -> dict[str, int]:
        before = self.lab.counts(*self.plans)
        for task, tier_index in itertools.product((None, *TASKS_A), TIER_INDEXES):
            headers = {"task": task} if task else {}
            key = return_key(self.queue, tier_index) if tier_index else "any.key"
            self.lab.publish(key, exchange=self.entry, headers=headers)
            self.lab.reject(self.lab.get(self.queue))
            self.sent += 1
        wait_for(
            lambda: sum(self.lab.counts(*self.plans).values()) >= self.sent, f"{self.sent} messages parked, {when}"
        )
        after = self.lab.counts(*self.plans)
        assert sum(after.values()) == self.sent, f"{when}: {sum(after.values()) - self.sent} came twice"
        return dict(Counter(after) - Counter(before))

    def nothing_came_twice(self) -> None:
        assert sum(self.lab.counts(*self.plans).values()) == self.sent


def expected(plan: LadderPlan, ladders: dict[str, Ladder | None]) -> dict[str, int]:
    """Return where the plan routes the probe's messages."""
    found: Counter[str] = Counter()
    for task, tier_index in itertools.product((None, *TASKS_A), TIER_INDEXES):
        ladder = ladders.get(task) if task else None
        ladder = ladder or plan.ladder
        if tier_index < len(ladder):
            found[plan.delay_queue(tier_index + 1, ladder.tiers_ms[tier_index]).name] += 1
        else:
            found[plan.exhausted] += 1
    return dict(found)


def settled(lab: Lab, plan: LadderPlan) -> Applied:
    return Applied.from_json(read_record(lab.connection, plan.record_queue()))


def lose_record(lab: Lab, plan: LadderPlan) -> None:
    """Purge the record of a plan after its last reader has returned it."""
    wait_for(lambda: lab.channel.queue_purge(plan.record_queue().name))
