"""Each way in which an attempt can end, with each option of a task, on each pool and queue type, against the table."""

import itertools
import signal
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from celery.utils import uuid

from celery_rmq_delay.app.state import state_of
from tests.support.brokers.connections import close_connections
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.matrix import AT_THE_GATE, OPTIONS, OUTCOMES, Expected, expected, name_of

#: Expected contents of the queues at the end.
QUEUES = ("shop", "shop.quarantine", "other", "other.quarantine")
#: Queue type, pool, and whether all cells are tried, or each outcome once.
SOME = [("quorum", "prefork", False), ("classic", "threads", False)]
ALL = [
    slow(queue_type, pool, True)
    for queue_type, pool in itertools.product(["classic", "quorum"], ["prefork", "threads", "solo", "gevent"])
]


def some(pool, queue_type):
    """Return each outcome with one option: another one on each pool and queue type."""
    shift = ["prefork", "threads", "solo", "gevent"].index(pool) * 2 + ["classic", "quorum"].index(queue_type)
    options = list(OPTIONS)
    return [(outcome, options[(k + shift) % len(options)]) for k, outcome in enumerate(OUTCOMES)]


def numbers(cell, attempts):
    return sorted(set(attempts) if OUTCOMES[cell[0]].repeats else attempts)


def terminate(lab, task_ids):
    """Revoke each of these tasks while it runs, and end its process."""

    def all_ended():
        active = lab.app.control.inspect(timeout=SECONDS, limit=1).active() or {}
        # With the process that runs it: before it is known, Celery 5.7 stores REVOKED, also of an ignored result.
        running = {each["id"] for tasks in active.values() for each in tasks if each["worker_pid"]} & task_ids
        running &= {attempt["id"] for attempt in lab.attempts()}
        if running:
            lab.app.control.revoke(list(running), terminate=True)
            task_ids.difference_update(running)
        return not task_ids

    wait_for(all_ended, "every task that is to be terminated")


@pytest.mark.parametrize(("queue_type", "pool", "whole"), [*SOME, *ALL])
def test_the_outcome_of_a_task_is_the_one_in_the_table(running_labs, pool, queue_type, whole):
    lab = running_labs(queue_type, pool, conf={"matrix": True})
    cells = list(itertools.product(OUTCOMES, OPTIONS)) if whole else some(pool, queue_type)
    cells = [(outcome, option) for outcome, option in cells if pool in (OUTCOMES[outcome].pools or (pool,))]
    ladder = state_of(lab.app).settings.default.ladder
    wanted = {cell: expected(*cell, ladder) for cell in cells}
    ids = {cell: uuid() for cell in cells}
    if revoked := [ids[cell] for cell in cells if OUTCOMES[cell[0]].revoked == "before it is sent"]:
        assert lab.app.control.revoke(revoked, reply=True, timeout=SECONDS, limit=1)
    for cell in cells:
        lab.task(name_of(*cell)).apply_async(task_id=ids[cell], **OPTIONS[cell[1]][1] | OUTCOMES[cell[0]].call)
    terminate(lab, {ids[cell] for cell in cells if OUTCOMES[cell[0]].revoked == "while it runs"})

    def found():
        attempts: dict[str, list[int]] = defaultdict(list)
        for attempt in lab.attempts():
            attempts[attempt["id"]].append(attempt["retries"])
        reasons.update(
            {each.headers["id"]: each.headers["rmq-delay-reason"] for each in lab.take("rmq_delay.exhausted")}
        )
        return {
            cell: Expected(numbers(cell, attempts[task_id]), lab.app.backend.get_state(task_id), reasons.get(task_id))
            for cell, task_id in ids.items()
        }

    def different():
        return {cell: each for cell, each in found().items() if each != wanted[cell]}

    reasons: dict[str, Any] = {}
    with suppress(AssertionError):  # the comparison shows which is not
        wait_for(lambda: not different(), "every task at its end")
    assert different() == {}
    wait_for(lambda: not any(lab.counts(*QUEUES).values()) and not lab.parked(), "nothing left in a queue")
    assert different() == {}, "a message that came twice has run by now"


@dataclass(frozen=True)
class Interruption:
    """An event that ends a worker or its connection; whether running and prefetched tasks are quarantined.

    With ``runs_out``, running tasks come to their end.
    """

    quarantine: bool
    runs_out: bool = False
    ends_worker: bool = True


INTERRUPTIONS = {
    "a killed worker": Interruption(quarantine=True),
    "a lost connection": Interruption(quarantine=True, ends_worker=False),
    "a warm shutdown": Interruption(quarantine=False, runs_out=True),
    "a cold shutdown": Interruption(quarantine=False),
}
SOME_INTERRUPTED = [
    ("a killed worker", "quorum", "prefork"),
    ("a lost connection", "classic", "gevent"),
    ("a warm shutdown", "classic", "threads"),
    ("a cold shutdown", "quorum", "prefork"),
]
ALL_INTERRUPTED = [
    slow(*each)
    for each in itertools.product(INTERRUPTIONS, ["classic", "quorum"], ["prefork", "threads", "solo", "gevent"])
    # A cold shutdown ends the processes of tasks; other pools have none.
    if each not in SOME_INTERRUPTED and (each[0] != "a cold shutdown" or each[2] == "prefork")
]


@pytest.mark.parametrize(("interruption", "queue_type", "pool"), [*SOME_INTERRUPTED, *ALL_INTERRUPTED])
def test_the_outcome_of_running_and_prefetched_tasks_is_the_one_in_the_table(
    make_lab, own_broker, interruption, queue_type, pool
):
    lab = make_lab(queue_type, conf={"matrix": True})
    found = INTERRUPTIONS[interruption]
    concurrency = 1 if pool == "solo" else 2
    results = {option: lab.task(name_of(AT_THE_GATE, option)).apply_async(**OPTIONS[option][1]) for option in OPTIONS}
    worker = lab.worker(pool, concurrency, "--prefetch-multiplier", "100")
    wait_for(lambda: len(lab.attempts()) == concurrency, "tasks that run")
    wait_for(lambda: lab.count("shop") == 0, "tasks that wait in the worker")
    began = {attempt["id"] for attempt in lab.attempts()}

    interrupt(worker, interruption, own_broker)
    if interruption == "a lost connection":
        # A loop that waits for a slot of its pool does not notice yet.
        wait_for(lambda: "to broker lost" in worker.logs() or lab.count("shop") == len(results), "the loss")
    if found.runs_out:
        lab.open_gate(2 * len(results))
    if found.ends_worker:
        worker.wait()
        lab.worker(pool, concurrency)
    lab.open_gate(2 * len(results))

    if interruption == "a lost connection" and pool != "prefork":  # such a pool runs all its tasks
        began = {result.id for result in results.values()}
    # Where the worker lives, an attempt goes on with the message that is delivered again.
    again = [0] if found.ends_worker and not found.runs_out else []
    wanted = {
        option: (
            [0, *again] if result.id in began else [0],
            stored_as(option, "SUCCESS"),
            found.quarantine and (found.ends_worker or result.id not in began),
        )
        for option, result in results.items()
    }

    def seen():
        attempts = {option: lab.attempts(result.id) for option, result in results.items()}
        return {
            option: (
                [each["retries"] for each in tried],
                stored_as(option, results[option].state),
                bool(tried and tried[-1]["redelivered"]),
            )
            for option, tried in attempts.items()
        }

    with suppress(AssertionError):
        wait_for(lambda: seen() == wanted, "every task at its end")
    assert seen() == wanted
    wait_for(lambda: not any(lab.counts(*QUEUES[:2], "rmq_delay.exhausted").values()), "nothing left in a queue")


def interrupt(worker, interruption, broker):
    if interruption == "a killed worker":
        worker.kill()
    elif interruption == "a lost connection":
        close_connections(broker)
    elif interruption == "a warm shutdown":
        worker.begin_stop()
    else:
        worker.send(signal.SIGQUIT)


def stored_as(option, state):
    """Return a state, or "ignored" where none is to be stored: Celery before 5.7 stores RETRY at a cold shutdown."""
    return "ignored" if option == "ignore_result" else state
