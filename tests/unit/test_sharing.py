"""Two apps in one process: Celery registers the tasks of each with the other one."""

from typing import Any

import pytest
from celery import _state, shared_task

from celery_rmq_delay import RetryableTask, SettingsError
from celery_rmq_delay.app.state import state_of
from tests.support.apps import app_of


@pytest.fixture(autouse=True)
def _nothing_stays_shared():
    known: Any = _state
    before = set(known._on_app_finalizers)
    yield
    known._on_app_finalizers.intersection_update(before)


@pytest.fixture
def one():
    """An app with two tiers, and a task of another app that needs six."""
    one, two = app_of({"tiers": ["1s", "2s"]}), app_of({"tiers": ["1s"] * 6})

    @one.task(base=RetryableTask, name="one.ping", tiers=["3s"])
    def ping(): ...

    @two.task(base=RetryableTask, name="two.poll", max_retries=5)
    def poll(): ...

    @two.task(base=RetryableTask, name="two.push", tiers=["4s"], bind=True)
    def push(_self): ...

    @two.task(base=RetryableTask, name="two.lax", acks_late=False)
    def lax(): ...

    return one


def test_an_app_beside_one_with_a_longer_ladder_starts_and_plans_no_tiers_of_its_tasks(one):
    delay = state_of(one)
    delay.finalize()
    assert "two.poll" in one.tasks
    assert set(delay.plan("celery", reason_routing=True).tasks) == {"one.ping"}
    assert delay.is_planned("celery", one.tasks["one.ping"])
    assert not delay.is_planned("celery", one.tasks["two.push"])


@pytest.mark.parametrize("name", ["two.poll", "two.lax"])
def test_another_apps_task_is_checked_when_it_is_called(one, name):
    with pytest.raises(SettingsError, match=f"of task {name}"):
        one.tasks[name].delay()


def test_an_apps_own_tasks_are_checked_at_its_start(one):
    @one.task(base=RetryableTask, name="one.greedy", max_retries=3)
    def greedy(): ...

    with pytest.raises(SettingsError, match=r"max_retries of task one\.greedy: found 3"):
        one.finalize()


def test_a_task_for_every_app_is_planned_in_each(one):
    @shared_task(base=RetryableTask, name="every.task", tiers=["7s"])
    def every(): ...

    delay = state_of(one)
    delay.finalize()
    assert "every.task" in delay.plan("celery", reason_routing=True).tasks


def test_a_task_for_every_app_is_checked_at_the_start_of_each(one, monkeypatch):
    monkeypatch.setattr(_state, "_get_active_apps", list)  # finalized apps of other tests would take it at once

    @shared_task(base=RetryableTask, name="every.greedy", max_retries=9)
    def greedy(): ...

    with pytest.raises(SettingsError, match=r"max_retries of task every\.greedy"):
        one.finalize()
