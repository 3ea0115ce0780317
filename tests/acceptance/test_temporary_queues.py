"""Queues that cannot have a ladder, because they end with their consumers or with the broker."""

import pytest

from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import TIERS

BRIEF = pytest.mark.parametrize(
    "options", [{"durable": False}, slow({"auto_delete": True})], ids=["transient", "auto-delete"]
)


def make(make_lab, settings=None, **options):
    """Return a lab with a worker that consumes the queue ``brief`` with these options, too."""
    queues = {name: {"exchange": name, "routing_key": name} for name in ("shop", "brief")}
    queues["brief"] |= options
    lab = make_lab(conf={"task_queues": queues}, **(settings or {}))
    lab.worker("prefork", 1, "--queues", "shop,brief")
    return lab


@BRIEF
def test_retries_of_a_temporary_queue_wait_for_the_delays_of_its_tiers(make_lab, options):
    lab = make(make_lab, **options)
    result = lab.task("fails").apply_async((2,), queue="brief")

    assert result.get(timeout=SECONDS) == 2
    first, second, third = lab.attempts(result.id)
    assert (second["at"] - first["at"] >= 0.3) and (third["at"] - second["at"] >= 0.6)
    assert [each["route"] for each in (first, second, third)] == [["", "brief"]] * 3


@BRIEF
def test_an_exhausted_task_of_a_temporary_queue_is_in_the_exhausted_queue(make_lab, options):
    lab = make(make_lab, **options)
    result = lab.task("fails").apply_async((99,), queue="brief")

    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert message.headers["id"] == result.id
    assert len(lab.attempts(result.id)) == len(TIERS) + 1


def test_a_tier_that_no_exact_delay_can_hold_is_named_where_its_queue_is_temporary(make_lab):
    lab = make(make_lab, {"tiers": ["300ms", "20s"], "exact_unit": 0.5, "exact_levels": 2}, auto_delete=True)
    failing = lab.task("fails").apply_async((2,), queue="brief")

    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert message.headers["id"] == failing.id
    assert message.headers["rmq-delay-message"].startswith(
        "tier 2 of fails on queue 'brief', whose tiers are exact delays: found 20.0. The longest delay of 'levels'"
    )


@BRIEF
@pytest.mark.parametrize("task", ["fails", "kills_child"])
def test_a_temporary_queue_has_no_delay_queues_that_would_stay_in_the_broker(make_lab, options, task):
    lab = make(make_lab, **options)
    result = lab.task(task).apply_async((1,), queue="brief")

    wait_for(result.ready)
    assert len(lab.attempts(result.id)) == 2
    assert lab.counts(lab.delay_queue(1, 300, "brief")) == {lab.delay_queue(1, 300, "brief"): None}
