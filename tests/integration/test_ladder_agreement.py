"""The same tasks, with the same failures, on the in-memory ladder and on a real worker and broker: the same stories."""

import random
import zlib
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

import celery_rmq_delay
from celery_rmq_delay import RetryableTask
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.testing import MemoryLadder
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.brokers

EXHAUSTED = "rmq_delay.exhausted"
QUEUES = ("celery", "mails", "imports")
STEPS = ("boom", "boom", "boom", "missing", "hopeless", "ok", "exact", "zero", "other_args", "other_queue", "caused")
TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own_tiers": {"tiers": ["2s", "20s"]},
    "limited": {"max_retries": 1},
    "gives_up": {"give_up_on": (KeyError, ArithmeticError)},
    "picky": {"autoretry_for": (OSError,)},
    "hard": {"dont_autoretry_for": (KeyError,)},
    "backs_off": {"retry_backoff": 5, "retry_jitter": False},
}


def make_app(queue_type):
    app = Celery("agreement", broker="amqp://user@broker.invalid//", set_as_current=False)
    app.conf.task_default_queue_type = app.conf.task_create_missing_queue_type = queue_type
    app.conf.rmq_delay = {
        "tiers": ["10s", "1m", "10m"],
        "queues": {"mails": {"tiers": ["5s"], "repeat_last": True}, "imports": {"tiers": ["30s", "2m"], "jitter": 0.3}},
    }
    celery_rmq_delay.install(app)
    for name, options in TASKS.items():
        app.task(base=RetryableTask, bind=True, name=name, shared=False, **options)(behave)
    return app


def behave(self, steps, walked=0):
    """Behave as the list specifies for this attempt."""
    step = steps[self.request.retries] if self.request.retries < len(steps) else "ok"
    if step == "boom":
        raise ConnectionError(f"attempt {self.request.retries}")
    if step == "missing":
        raise KeyError("missing")
    if step == "hopeless":
        raise ZeroDivisionError
    if step == "rejected":
        raise Reject("later", requeue=False)
    if step in ("exact", "zero"):
        raise self.retry(countdown=45 if step == "exact" else 0)
    if step == "other_args":
        raise self.retry(args=(steps, walked + 1))
    if step == "other_queue":
        raise self.retry(queue="celery")
    if step == "caused":
        raise self.retry(exc=OSError("caused"))
    return f"{self.request.retries} {walked}"


def behaviours(seed, count):
    """Return random tasks, their queues and the results of their attempts."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        steps = [chance.choice(STEPS) for _ in range(chance.randrange(6))]
        if chance.random() < 0.1:
            steps = ["rejected", "ok"]
        found.append((chance.choice(list(TASKS)), chance.choice(QUEUES), steps))
    return found


def outline(story):
    """Return a story without its times."""
    attempts = [
        (
            attempt.number,
            attempt.queue,
            tuple(attempt.args),
            attempt.state,
            repr(attempt.exception),
            attempt.tier,
            attempt.delay,
        )
        for attempt in story.attempts
    ]
    return [
        story.name,
        story.state,
        story.reason,
        story.recovered,
        repr(story.exception),
        story.result,
        story.is_finished,
        *attempts,
    ]


def signatures(app, wanted, seed):
    # The jitter lane depends on the id.
    return [
        app.tasks[task].s(steps).set(queue=queue, task_id=f"{seed}-{number}-{zlib.crc32(task.encode())}")
        for number, (task, queue, steps) in enumerate(wanted)
    ]


@pytest.mark.parametrize(("queue_type", "seed"), [pytest.param("classic", 6, marks=pytest.mark.slow), ("quorum", 7)])
def test_memory_and_broker_have_the_same_stories(queue_type, seed, rmq_worker):
    wanted = behaviours(seed, 80)
    app = make_app(queue_type)
    with MemoryLadder(app) as memory:
        results = [signature.apply_async() for signature in signatures(app, wanted, seed)]
        memory.run()
        imagined = {result.id: outline(memory.story(result)) for result in results}
        states = {result.id: result.state for result in results}
        with app.connection_for_read() as connection:
            given_up = ready_counts(connection, [EXHAUSTED])
    worker = rmq_worker(app)
    results = [worker.send(signature) for signature in signatures(app, wanted, seed)]
    for result in results:
        worker.wait(result, timeout=SECONDS)
        assert outline(worker.story(result)) == imagined[result.id], f"{worker.story(result)}"
        assert result.state == states[result.id]
    with app.connection_for_read() as connection:
        assert ready_counts(connection, [EXHAUSTED]) == given_up
    ends = {(outline[1], outline[2]) for outline in imagined.values()}
    assert ends == {("SUCCESS", None), ("FAILURE", "retries_used"), ("FAILURE", "gave_up")}
    tiers = {attempt[5] for outline in imagined.values() for attempt in outline[7:]}
    assert tiers == {None, 1, 2, 3}
