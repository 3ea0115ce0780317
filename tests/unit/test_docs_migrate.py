"""The code before and after each change of docs/migrate/from-stock-celery.md."""

from types import SimpleNamespace
from typing import Any

import pytest

from celery_rmq_delay.app import queues
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.testing import MemoryLadder, exhausted
from tests.support import ROOT
from tests.support.snippets import section

PAGE = ROOT / "docs/migrate/from-stock-celery.md"
ADOPT = ROOT / "docs/migrate/adopt-existing-queue.md"
APP = [each.code for each in section(PAGE, "1. Add the package to the app") if each.language == "python"]
TASKS = [each.code for each in section(PAGE, "4. Change the tasks") if each.language == "python"]


class Failing:
    """The gateway and the bank of the page: the gateway is down, the bank replies with the answers."""

    def __init__(self):
        self.answers: list[SimpleNamespace] = []

    def charge(self, _order_id):
        raise ConnectionError

    refund = charge

    def rates(self, _currency):
        return self.answers.pop(0)


def module(app, *tasks):
    """Run these blocks as one module, whose tasks stay in its app."""
    names: dict[str, Any] = {"__name__": "proj"}
    names["gateway"] = names["bank"] = Failing()
    for code in (app, *(each.replace("@app.task(", "@app.task(shared=False, ") for each in tasks)):
        exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def before():
    charge, _, fetch_rates, _, refund, _ = TASKS
    names = module(APP[0], charge, fetch_rates, refund)
    yield names
    names["app"].close()


@pytest.fixture
def after():
    _, charge, _, fetch_rates, _, refund = TASKS
    names = module(APP[1], charge, fetch_rates, refund)
    with MemoryLadder(names["app"]) as ladder:
        yield names, ladder
    names["app"].close()


def test_the_tasks_before_have_the_retries_that_the_page_names(before):
    app = before["app"]
    app.finalize()
    assert [app.tasks[f"proj.{name}"].max_retries for name in ("charge", "fetch_rates")] == [4, 3]
    refund = app.tasks["proj.refund"]
    assert (refund.retry_kwargs, refund.default_retry_delay) == ({"max_retries": 5}, 180)


def test_a_task_with_backoff_uses_the_ladder(after):
    names, ladder = after
    story = ladder.run(names["charge"].s(7))
    assert story.waits == [10, 60, 600, 3600]
    exhausted(story, reason="retries_used", exception=ConnectionError)


def test_a_task_with_countdown_waits_exactly_and_otherwise_in_the_tier_of_its_number(after):
    names, ladder = after
    names["bank"].answers = [
        SimpleNamespace(status=429, retry_after=45),
        SimpleNamespace(status=503),
        SimpleNamespace(status=200, rates={"USD": 1.1}),
    ]
    story = ladder.run(names["fetch_rates"].s("EUR"))
    assert (story.waits, story.tiers, story.result) == ([45, 60], [None, 2], {"USD": 1.1})


def test_only_retry_retries_a_task_without_autoretry(after):
    names, ladder = after
    story = ladder.run(names["fetch_rates"].s("EUR"))  # the bank has no answer: IndexError
    assert story.waits == []
    exhausted(story, reason="gave_up", exception=IndexError)


def test_a_task_with_more_retries_than_tiers_keeps_them_and_its_delays(after):
    names, ladder = after
    assert ladder.run(names["refund"].s(7)).waits == [180] * 5


def test_the_error_for_more_retries_than_tiers_is_the_one_on_the_page():
    old, by = TASKS[4], "from celery_rmq_delay import RetryableTask\n"
    names = module(APP[1], by + old.replace("@app.task(", "@app.task(base=RetryableTask, "))
    with pytest.raises(SettingsError) as raised:
        names["app"].finalize()
    assert f"\n{raised.value}\n" in PAGE.read_text()
    names["app"].close()


def test_the_logger_that_the_page_silences_is_that_of_the_warning():
    assert f'logging.getLogger("{queues.logger.name}").setLevel(logging.ERROR)' in ADOPT.read_text()
