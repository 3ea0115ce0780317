"""Each way in which an attempt can end, with each option of a task, on each pool and queue type: as the table says."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from celery_rmq_delay.delay import delay_of
from tests.support.waiting import wait_for
from tests.support.workers.lab import Lab
from tests.support.workers.matrix import OPTIONS, OUTCOMES, Expected, expected, name_of

#: What the queues have to have at the end.
QUEUES = ("shop", "shop.suspects")
#: Queue type, pool, and whether all cells are tried, or each outcome once.
SOME = [("quorum", "prefork", False), ("classic", "threads", False)]
ALL = [
    pytest.param(queue_type, pool, True, marks=pytest.mark.slow)
    for queue_type, pool in itertools.product(["classic", "quorum"], ["prefork", "threads", "solo", "gevent"])
]


def some(pool: str, queue_type: str) -> list[tuple[str, str]]:
    """Return each outcome with one option: another one on each pool and queue type."""
    shift = ["prefork", "threads", "solo", "gevent"].index(pool) * 2 + ["classic", "quorum"].index(queue_type)
    options = list(OPTIONS)
    return [(outcome, options[(k + shift) % len(options)]) for k, outcome in enumerate(OUTCOMES)]


@pytest.mark.parametrize(("queue_type", "pool", "whole"), [*SOME, *ALL])
def test_what_becomes_of_a_task_is_what_the_table_says(
    running_labs: Callable[..., Lab], pool: str, queue_type: str, whole: bool
) -> None:
    lab = running_labs(queue_type, pool, conf={"matrix": True})
    cells = list(itertools.product(OUTCOMES, OPTIONS)) if whole else some(pool, queue_type)
    cells = [(outcome, option) for outcome, option in cells if pool in (OUTCOMES[outcome].pools or (pool,))]
    ladder = delay_of(lab.app).settings.default.ladder
    wanted = {cell: expected(*cell, ladder) for cell in cells}
    results = {cell: lab.task(name_of(*cell)).apply_async(**OPTIONS[cell[1]][1]) for cell in cells}

    def found() -> dict[tuple[str, str], Expected]:
        attempts: dict[str, list[int]] = defaultdict(list)
        for attempt in lab.attempts():
            attempts[attempt["id"]].append(attempt["retries"])
        reasons.update(
            {each.headers["id"]: each.headers["rmq-delay-reason"] for each in lab.take("rmq_delay.exhausted")}
        )
        return {
            cell: Expected(sorted(attempts[result.id]), lab.app.backend.get_state(result.id), reasons.get(result.id))
            for cell, result in results.items()
        }

    reasons: dict[str, Any] = {}
    with suppress(AssertionError):  # the comparison says which is not
        wait_for(lambda: found() == wanted, "every task at its end")
    assert {cell: each for cell, each in found().items() if each != wanted[cell]} == {}
    wait_for(lambda: not any(lab.counts(*QUEUES).values()) and not lab.parked(), "nothing left in a queue")
