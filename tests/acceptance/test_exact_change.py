"""Ladder, prefix and exact delays change while old and new workers run: no task is lost, no attempt is made twice."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.corpus import slow
from tests.support.waiting import wait_for
from tests.support.workers.lab import close_app
from tests.support.workers.project import make_app

pytestmark = pytest.mark.slow

#: Calls before the first step.
MANY, FEW = slow(5_000), 100
#: Of each 25 of them, calls made while the workers of a step and of the one before run side by side.
MORE = 25
CONF = {"result_backend": None, "task_ignore_result": True, "worker_prefetch_multiplier": 2}


class Travellers:
    def __init__(self, lab):
        self._lab, self._dice = lab, random.Random(20261123)
        self._numbers = itertools.count()
        self.fates: dict[str, int] = {}

    def send(self, app, calls, countdowns):
        """Call a task ``calls`` times: three of four with a countdown; some fail, plainly or with a countdown."""
        task = app.tasks["travels"]
        for number in itertools.islice(self._numbers, calls):
            times = self._dice.choice([0, 0, 1, 2])
            again = self._dice.uniform(1, 4) if number % 2 else None
            countdown = self._dice.uniform(*countdowns) if number % 4 else None
            self.fates[task.apply_async((times, again), countdown=countdown).id] = times

    @property
    def expected(self):
        return {(task_id, attempt) for task_id, times in self.fates.items() for attempt in range(times + 1)}

    def attempts(self):
        lines = self._lab.redis.lrange(self._lab.config.attempts, 0, -1)
        return Counter((words[0], int(words[1])) for line in lines for words in [line.decode().split()])

    def done(self):
        return self._lab.redis.llen(self._lab.config.attempts) >= len(self.expected) and not any(
            self._lab.counts("shop", "shop.quarantine").values()
        )


def roll(lab, calls, steps, countdowns):
    """Walk through settings, each step with old and new workers side by side; check every attempt."""
    travellers, workers = Travellers(lab), [start(lab, lab.config.rmq_delay)]
    travellers.send(lab.app, calls, countdowns)
    for settings in steps:
        # The next workers do not release a loop of another unit or type: it has to be empty.
        if "exact_unit" in settings or "exact_queue_type" in settings:
            wait_for(lambda: not loops(lab), "empty loops", pause=0.2)
        app = make_app(replace(lab.config, rmq_delay=settings))
        workers.append(start(lab, settings))
        travellers.send(app, calls // MORE, (1, 5))
        retire(lab, workers.pop(0))
        travellers.send(app, calls // MORE, (1, 5))
        close_app(app)
    expected = travellers.expected
    wait_for(travellers.done, "every attempt", pause=0.2)
    wait_for(lambda: travellers.attempts().keys() >= expected, "every attempt")

    found = travellers.attempts()
    assert set(found) == expected
    assert {attempt: count for attempt, count in found.items() if count > 1} == {}


def loops(lab):
    return sum(lab.count(f"rmq_delay.loop.1s.classic.{part}") for part in ("delay", "wait"))


def start(lab, settings):
    return lab.worker("prefork", 2, "--loglevel", "INFO", config=replace(lab.config, rmq_delay=settings))


def retire(lab, worker):
    """Let a worker finish what it has, then end it.

    Celery's warm shutdown drops the results of a busy prefork pool: the broker would deliver those tasks again.
    """
    name, control = f"{worker.name()}@test", lab.app.control
    control.cancel_consumer("shop", destination=[name], reply=True, timeout=10)
    inspect = control.inspect([name], timeout=3)

    def is_idle():
        found = [inspect.reserved(), inspect.active()]
        return all(each is not None and each[name] == [] for each in found)

    wait_for(is_idle, f"{name} idle")
    worker.stop()


@pytest.fixture
def make_rolling(make_lab):
    yield lambda queue_type, **settings: make_lab(queue_type, conf=CONF, **settings)


@pytest.mark.slow
@pytest.mark.brokers
@pytest.mark.parametrize("calls", [FEW, MANY])
def test_tasks_outlive_a_change_of_tiers_and_of_the_prefix(make_rolling, queue_type, calls):
    lab = make_rolling(queue_type, tiers=["2s", "5s", "8s"])
    tiers = {"tiers": ["3s", "5s", "7s"]}
    roll(lab, calls, [tiers, {**tiers, "prefix": "second"}], (3, 6) if calls < 1_000 else (10, 30))


@pytest.mark.parametrize("calls", [FEW, MANY])
def test_tasks_outlive_changes_of_the_exact_delays(make_rolling, calls):
    tiers = {"tiers": ["2s", "5s", "8s"]}
    lab = make_rolling("classic", **tiers, exact_delays="levels")
    steps = [
        {"exact_delays": ["hold", "levels"]},
        {"exact_delays": ["loop", "hold", "levels"]},
        {"exact_delays": ["levels", "loop"]},
        {"exact_delays": ["levels", "loop"], "exact_unit": "500ms"},
        {"exact_delays": ["levels", "loop"], "exact_queue_type": "quorum"},
    ]
    if calls < 1_000:
        roll(lab, calls, [{**tiers, **step} for step in steps[1:3]], (3, 6))
    else:
        roll(lab, calls, [{**tiers, **step} for step in steps], (15, 50))
