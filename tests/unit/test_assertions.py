"""Messages of failed assertions about retries, and a cheap import."""

import subprocess
import sys

import pytest

from celery_rmq_delay.testing import Attempt, TaskStory, exhausted, parked, recovered
from tests.support.corpus import corpus
from tests.support.waiting import SECONDS

pytest_plugins = ["pytester"]

USERS_TEST = """
import celery_rmq_delay
from celery import Celery
from celery_rmq_delay import RetryableTask
from celery_rmq_delay.testing import exhausted, parked, recovered

app = Celery("shop", broker="amqp://nowhere.invalid//")
app.conf.rmq_delay = {"tiers": ["10s", "1m"]}
celery_rmq_delay.install(app)


@app.task(base=RetryableTask, bind=True, name="charge")
def charge(self, fails):
    if self.request.retries < fails:
        raise ConnectionError("The gateway does not answer.")


def test_passes(rmq_ladder):
    recovered(rmq_ladder(app).run(charge.s(2)), after=2)


def test_recovers_later(rmq_ladder):
    recovered(rmq_ladder(app).run(charge.s(2)), after=1)


def test_is_exhausted(rmq_ladder):
    recovered(rmq_ladder(app).run(charge.s(3)))


def test_is_parked_elsewhere(rmq_ladder):
    parked(rmq_ladder(app).run(charge.s(1)), tier=2, delay="30s")
"""


def test_failed_assertions_of_a_user_show_the_whole_story(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(USERS_TEST)
    # Neither pytest-celery nor Celery's fixtures are required.
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:celery", "-p", "no:pytest_celery")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "E * AssertionError: charge recovered after 2 retries, expected 1",
            "E * charge[[]*] is SUCCESS",
            "E * attempt 0 on celery at 0s: ConnectionError: The gateway does not answer., parked in tier 1 for 10s",
            "E * attempt 1 on celery at 10s: ConnectionError: *, parked in tier 2 for 1m",
            "E * attempt 2 on celery at 1m10s: SUCCESS",
            "E * AssertionError: charge did not recover: it is FAILURE",
            "E * charge[[]*] is FAILURE, exhausted: retries_used",
            "E * AssertionError: charge was not parked in tier 2 for 30s, found: tier 1 for 10s",
        ]
    )
    assert "testing/story.py" not in result.stdout.str()  # a failure points at the test


def waited(*waits):
    attempts = [Attempt(number, "q", 0, tier=tier, delay=delay) for number, (tier, delay) in enumerate(waits)]
    return TaskStory("id", "task", attempts, state="RETRY")


def test_a_wait_is_found_by_tier_by_delay_and_by_both():
    story = waited((1, 10), (None, 45.5), (2, 60))
    assert parked(story).number == 0
    assert parked(story, tier=2).number == 2
    assert parked(story, delay=45.5).number == 1
    assert parked(story, tier=2, delay="1m").number == 2
    assert parked(story, delay=("40s", "50s")).number == 1
    assert story.waits == [10, 45.5, 60]
    assert story.tiers == [1, None, 2]


@corpus(
    "wanted, message",
    [
        ({"tier": 3}, "was not parked in tier 3, found: tier 1 for 10s, an exact delay for 45s"),
        ({"delay": ("11s", "12s")}, "was not parked for 11s to 12s, found: tier 1 for 10s"),
    ],
)
def test_a_missing_wait_is_reported_beside_those_that_exist(wanted, message):
    with pytest.raises(AssertionError, match=message):
        parked(waited((1, 10), (None, 45)), **wanted)  # type: ignore[arg-type]


def test_both_ends_of_a_long_story_are_shown():
    text = str(waited(*[(1, 10)] * 100))
    assert len(text.splitlines()) == 22
    assert "attempt 9 on" in text and "... 80 attempts ..." in text and "attempt 99 on" in text
    assert "attempt 10 on" not in text


def test_no_wait_and_success_at_once_are_reported():
    with pytest.raises(AssertionError, match=r"task was not parked, found: none\n\ntask.id. is PENDING\n  no attempt"):
        parked(TaskStory("id", "task"))
    story = TaskStory("id", "task", [Attempt(0, "q", 0, state="SUCCESS")], state="SUCCESS")
    with pytest.raises(AssertionError, match="did not recover: it succeeded at once"):
        recovered(story)


def test_exhausted_compares_reason_and_exception():
    error = OSError("gone")
    story = TaskStory("id", "task", state="FAILURE", reason="gave_up", exception=error)
    assert exhausted(story, reason="gave_up", exception=OSError) is error
    with pytest.raises(AssertionError, match="for the reason 'gave_up', expected 'retries_used'"):
        exhausted(story, reason="retries_used")
    with pytest.raises(AssertionError, match="by OSError: gone, expected KeyError"):
        exhausted(story, exception=KeyError)
    with pytest.raises(AssertionError, match="is not exhausted: it is PENDING"):
        exhausted(TaskStory("id", "task"))


def test_the_plugin_imports_neither_celery_nor_a_server():
    code = (
        "import sys, celery_rmq_delay.testing.plugin\n"
        "heavy = [name for name in sys.modules if name.startswith('celery_rmq_delay.testing.')]\n"
        "print(heavy, 'celery.worker' in sys.modules, 'pytest_celery' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "['celery_rmq_delay.testing.plugin'] False False\n"
