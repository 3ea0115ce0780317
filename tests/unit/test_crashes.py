"""The crash guard's decisions."""

from typing import Any

from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.headers import CRASHES
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.retry.decision import Action, Place, arrive, crashes, was_interrupted
from tests.support.corpus import corpus

OLD, V40, V43 = Capabilities((3, 10, 8)), Capabilities((4, 0, 5)), Capabilities((4, 3, 6))


def rejected(times, delivery_count=None):
    headers: dict[str, Any] = {"x-death": [{"queue": "q", "reason": "rejected", "count": times}]} if times else {}
    return headers if delivery_count is None else {**headers, "x-delivery-count": delivery_count}


@corpus(
    "broker, quorum, headers, interrupted",
    [
        # Where the flag is set for interruptions only, the flag decides.
        (OLD, False, rejected(0), True),
        (OLD, False, rejected(2), True),
        (OLD, True, rejected(2, 1), True),
        (OLD, True, rejected(2, 2), True),
        (V40, False, rejected(2), True),
        (V43, False, rejected(2), True),
        # Quorum queues of 4.x flag all rejected messages: the count decides.
        (V40, True, rejected(2, 2), False),
        (V40, True, rejected(2, 1), True),
        (V40, True, rejected(0, 1), True),
        (V43, True, rejected(2, 2), False),
        (V43, True, rejected(2, 3), True),
        (V43, True, rejected(0, 1), True),
        (V43, True, rejected(2), True),
        (V43, True, rejected(0), False),
        (V43, True, rejected(2, "junk"), True),
        # RabbitMQ 4.3 counts a time-out as acquired only.
        (V43, True, rejected(0) | {"x-acquired-count": 1}, True),
        (V43, True, rejected(2, 2) | {"x-acquired-count": 1}, True),
        (V43, True, rejected(2, 2) | {"x-acquired-count": 2}, False),
        (V43, True, rejected(1, 1) | {"x-acquired-count": 2}, True),
    ],
)
def test_interruptions_are_distinguished_from_retries(broker, quorum, headers, interrupted):
    assert was_interrupted(headers, redelivered=True, quorum=quorum, broker=broker) is interrupted


@corpus("value, known", [(2, 2), (0, 0), (-1, 0), ("3", 0), (None, 0), ([], 0), (1.5, 0)])
def test_only_a_whole_number_counts_as_crashes(value, known):
    assert crashes({CRASHES: value}) == known
    assert crashes({}) == 0


def arrival(headers, *, interrupted, is_quarantined, max_crashes):
    place = Place("q", is_quarantined, max_crashes=max_crashes)
    return arrive(headers, place, Ladder((1000,)), known=0, routing_key="q", redelivered=interrupted)


def run_until_given_up(max_crashes):
    """Return the number of kills of a task that kills every worker."""
    headers: dict[str, Any] = {}
    is_quarantined = False
    for kills in range(100):
        found = arrival(headers, interrupted=kills > 0, is_quarantined=is_quarantined, max_crashes=max_crashes)
        if found.action is Action.EXHAUSTED:
            return kills
        if found.action is Action.QUARANTINE:
            # The copy is new in the quarantine queue, with the known crashes.
            headers, is_quarantined = {CRASHES: found.crashes}, True
            fresh = arrival(headers, interrupted=False, is_quarantined=True, max_crashes=max_crashes)
            assert fresh.action is Action.RUN
    raise AssertionError("never given up")


@corpus("max_crashes, kills", [(0, 2), (1, 2), (2, 3), (3, 4), (7, 8)])
def test_a_task_that_kills_every_worker_is_given_up_after_more_than_max_crashes(max_crashes, kills):
    """The first kill quarantines the task without proof, so at least two are needed."""
    assert run_until_given_up(max_crashes) == kills


@corpus("known", [0, 1, 99])
@corpus("max_crashes", [0, 3])
def test_a_message_that_was_only_prefetched_is_quarantined_and_never_given_up(known, max_crashes):
    found = arrival({CRASHES: known}, interrupted=True, is_quarantined=False, max_crashes=max_crashes)
    assert (found.action, found.crashes) == (Action.QUARANTINE, known)


@corpus("known", [0, 1, 99])
@corpus("is_quarantined", [False, True])
def test_a_message_that_was_not_interrupted_runs(known, is_quarantined):
    found = arrival({CRASHES: known}, interrupted=False, is_quarantined=is_quarantined, max_crashes=0)
    assert (found.action, found.crashes) == (Action.RUN, known)


@corpus(
    "headers, counted", [({}, 1), ({"x-delivery-count": 1, "x-acquired-count": 1}, 1), ({"x-acquired-count": 1}, 0)]
)
def test_a_time_out_of_a_quarantined_task_is_no_crash(headers, counted):
    place = Place("q", is_quarantined=True, counts=True, broker=V43)
    found = arrive(headers, place, Ladder((1000,)), known=0, routing_key="q.quarantine", redelivered=True)
    assert (found.action, found.crashes) == (Action.QUARANTINE, counted)
