"""Routes of tasks: what is known without a call, and what only a call decides."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Queue

from celery_rmq_delay import RetryableTask, SettingsError
from celery_rmq_delay.app.inventory import origin_queues
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.ladders import Ladder
from tests.support.apps import app_of
from tests.support.corpus import corpus

OWN = Ladder((5000, 6000))


def by_tenant(_name, _args, kwargs, _options, **_):
    return {"queue": f"tenant-{kwargs['tenant']}"}


def by_number(_name, args, *_, **__):
    return f"shard-{args[0]}"


class ByTenant:
    def route_for_task(self, _name, _args=None, kwargs=None):
        return {"queue": f"tenant-{kwargs['tenant']}"}


def app_routed_by(*routes, rmq_delay=None, **options):
    app = app_of(rmq_delay or {"tiers": ["1s", "2s"], "queues": {"slow": {"tiers": ["1h"] * 5}}}, task_routes=routes)

    @app.task(base=RetryableTask, name="charge", shared=False, **({"tiers": ["5s", "6s"]} | options))
    def charge(*_, **__): ...

    return app, charge


@corpus(
    "router",
    [by_tenant, by_number, ByTenant(), f"{__name__}.by_tenant", f"{__name__}.ByTenant", "no.such.module.router"],
)
def test_a_router_is_not_called_without_a_call(router):
    app, charge = app_routed_by(router, max_retries=2)
    delay = state_of(app)
    delay.finalize()
    assert delay.routed_to(charge) is None
    assert origin_queues(delay) == ["celery", "slow"]
    # It may run in any queue, so each has its ladder.
    assert [delay.tasks_of(queue)["charge"] for queue in ("celery", "slow")] == [OWN, OWN]
    assert delay.is_planned("slow", charge)


@corpus(
    "routes, queue",
    [
        (({"charge": "slow"}, by_tenant), "slow"),
        (({"ch*": {"queue": "slow"}}, by_tenant), "slow"),
        (({"charge": {"queue": Queue("slow")}},), "slow"),
        (({"other": "slow"}, by_tenant), None),
        (({"charge": {"exchange": "shop", "routing_key": "charge"}},), None),
        (({"other": "slow"},), "celery"),
        ((), "celery"),
    ],
)
def test_a_route_that_is_no_function_is_known_if_no_function_comes_before_it(routes, queue):
    app, charge = app_routed_by(*routes)
    assert state_of(app).routed_to(charge) == queue


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_the_queue_of_a_task_is_known_whatever_its_routers_do():
    app, charge = app_routed_by(by_tenant, queue="slow")
    assert state_of(app).routed_to(charge) == "slow"


def test_the_log_notes_once_that_functions_route_tasks(caplog):
    caplog.set_level(logging.INFO)
    app, _ = app_routed_by(by_tenant)
    delay = state_of(app)
    for _ in range(2):
        delay.finalize()
        origin_queues(delay)
    assert caplog.text.count("task_routes has functions") == 1


def test_a_route_to_a_queue_that_may_not_be_created_names_none():
    app, charge = app_routed_by({"charge": {"queue": "nowhere"}})
    app.conf.task_create_missing_queues = False
    delay = state_of(app)
    delay.finalize()
    assert delay.routed_to(charge) is None
    assert "nowhere" not in origin_queues(delay)


@pytest.mark.parametrize(
    ("max_retries", "is_right"), [(5, True), (6, False)], ids=["as many as one ladder has", "more than any ladder has"]
)
def test_a_limit_is_right_if_the_ladder_of_a_possible_queue_allows_it(max_retries, is_right):
    make: Callable[[], Any] = lambda: app_routed_by(by_tenant, tiers=None, max_retries=max_retries)[0].finalize()  # noqa: E731
    if is_right:
        make()
        return
    with pytest.raises(SettingsError, match=f"max_retries of task charge: found {max_retries}"):
        make()
