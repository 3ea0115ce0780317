"""The rule of the retry budget in docs/reference/task.md, form by form, and the recipe for polling."""

import runpy
from collections.abc import Callable

import pytest
from celery import Celery

from celery_rmq_delay import RetryableTask
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.testing import MemoryLadder, exhausted
from tests.support import ROOT
from tests.support.apps import app_of
from tests.support.snippets import write

MakeLadder = Callable[[Celery], MemoryLadder]
TIERS = ["10s", "1m", "10m", "1h"]


@pytest.fixture
def app():
    app = app_of({"tiers": TIERS, "queues": {"endless": {"tiers": ["30s"], "repeat_last": True}}})
    yield app
    app.close()


def fails(app, retries=None, **options):
    """Return a task that always fails; with ``retries`` by `self.retry` with these arguments."""

    @app.task(shared=False, lazy=False, base=RetryableTask, bind=True, name="fails", **options)
    def fails(self):
        if retries is not None:
            raise self.retry(exc=ConnectionError("again"), **retries)
        raise ConnectionError("again")

    return fails


@pytest.mark.parametrize(
    ("options", "retries", "attempts"),
    [
        ({}, None, 5),
        ({"max_retries": 3}, None, 4),
        ({"retry_kwargs": {"max_retries": 3}}, None, 4),
        ({"retry_kwargs": {"max_retries": 3, "countdown": 2}}, None, 4),
        ({"default_retry_delay": 1}, None, 5),
        ({"autoretry_for": ()}, {"max_retries": 3}, 4),
        ({"autoretry_for": ()}, {"countdown": 30}, 5),
        ({"retry_backoff": True}, None, 5),
    ],
)
def test_a_task_is_retried_as_often_as_its_ladder_and_its_limit_allow(app, rmq_ladder, options, retries, attempts):
    task = fails(app, retries, **options)
    story = rmq_ladder(app).run(task.s())
    exhausted(story, reason="retries_used", exception=ConnectionError)
    assert len(story.attempts) == attempts


@pytest.mark.parametrize("options", [{"max_retries": 50}, {"max_retries": None}, {"retry_kwargs": {"max_retries": 5}}])
def test_more_retries_than_tiers_are_an_error_when_the_app_starts(app, options):
    with pytest.raises(SettingsError, match="The ladder is the retry budget and has 4 tiers"):
        fails(app, **options)


def test_more_retries_than_tiers_in_a_call_of_retry_fail_the_attempt(app, rmq_ladder):
    task = fails(app, {"max_retries": 50}, autoretry_for=())
    story = rmq_ladder(app).run(task.s())
    exhausted(story, exception=SettingsError)


def test_a_ladder_that_repeats_its_last_tier_allows_any_number(app, rmq_ladder):
    app.conf.task_routes = {"fails": {"queue": "endless"}}
    task = fails(app, max_retries=50)
    story = rmq_ladder(app).run(task.s())
    exhausted(story, reason="retries_used")
    assert len(story.attempts) == 51


def test_a_task_that_polls_keeps_its_limit_and_its_interval(tmp_path, rmq_ladder):
    write(ROOT / "docs/start/retry-without-limit.md", tmp_path, "polling.py")
    page = tmp_path / "polling.py"
    page.write_text(page.read_text().replace("@app.task(", "@app.task(shared=False, "))  # no task of other tests' apps
    found = runpy.run_path(str(page))
    story = rmq_ladder(found["app"]).run(found["fetch_report"].s(7))
    exhausted(story, reason="retries_used")
    assert len(story.attempts) == 51
    assert set(story.waits) == {30}
    found["app"].close()
