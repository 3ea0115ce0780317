"""A user's tests on a real broker: a worker in a thread of the test, and worker processes with the same clock."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from celery import Celery, chain, chord
from celery import current_app as celery_current_app

import celery_rmq_delay
from celery_rmq_delay import RetryableTask
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.testing import BrokerLadder, LadderClock, NotFinishedError, exhausted, parked, recovered
from celery_rmq_delay.worker import hooks
from celery_rmq_delay.worker.request import RetryableRequest
from tests.support.waiting import SECONDS, wait_for

Start = Callable[..., BrokerLadder]


@pytest.fixture
def app():
    app = Celery("shop", broker="amqp://user@broker.invalid//", backend="redis://results.invalid")
    app.conf.rmq_delay = {"tiers": ["10s", "1m", "1h"], "queues": {"mails": {"tiers": ["1m"], "repeat_last": True}}}
    celery_rmq_delay.install(app)

    @app.task(base=RetryableTask, bind=True, name="charge", shared=False)
    def charge(self, fails):
        if self.request.retries < fails:
            raise ConnectionError("The gateway does not answer.")
        return self.request.retries

    yield app
    app.close()


@pytest.mark.slow
def test_the_same_test_passes_on_a_real_broker(app, rmq_worker):
    charge, ladder = app.tasks["charge"], rmq_worker(app)
    story = ladder.run(charge.s(3))
    assert story.waits == [10, 60, 3600]
    recovered(story, after=3)
    parked(story, tier=3, delay="1h")
    exhausted(ladder.run(charge.s(9)), reason="retries_used", exception=ConnectionError)


def test_the_tiers_are_the_brokers_and_last_as_long_as_the_clock_sets(app, rmq_worker):
    charge, ladder = app.tasks["charge"], rmq_worker(app, shortest="300ms", longest="1s")
    story = ladder.send(charge.s(1).set(queue="mails"))
    short = state_of(app).ladder("mails", charge).tiers_ms[0]
    assert 300 < short < 1000
    ladder.wait(story)
    attempts = ladder.story(story).attempts
    assert attempts[1].at - attempts[0].at >= short / 1000
    with app.connection_for_read() as connection:
        assert ready_counts(connection, [f"mails.retry.1.{short}ms"]) == {f"mails.retry.1.{short}ms": 0}


def test_a_worker_that_lacks_a_hook_logs_it_and_retries_as_celery_does(app, rmq_worker, monkeypatch, caplog):
    @app.task(base=RetryableTask, bind=True, name="refund", shared=False)
    def refund(self):
        if not self.request.retries:
            raise self.retry(countdown=0.1)
        return int(self.request.retries)

    monkeypatch.setitem(hooks.HOOKS, "celery.worker.request:Request", ("_settled_by",))
    hooks.missing.cache_clear()
    try:
        forged = refund.s().set(headers={"rmq_delay": ["refund"]})
        assert rmq_worker(app).send(forged).get(timeout=SECONDS) == 1
    finally:
        hooks.missing.cache_clear()
    (warned,) = [record for record in caplog.records if "Retries wait in the worker" in record.getMessage()]
    assert "celery.worker.request:Request._settled_by" in warned.getMessage()
    with app.connection_for_read() as connection:
        assert set(ready_counts(connection, ["celery.quarantine", "celery.retry.1.10s"]).values()) == {None}


def test_chains_chords_and_results_work(app, rmq_worker):
    charge = app.tasks["charge"]
    rmq_worker(app)
    assert chain(charge.si(1), charge.si(2)).delay().get(timeout=SECONDS) == 2
    assert chord([charge.si(1), charge.si(0)])(charge.si(1)).get(timeout=SECONDS) == 1


def test_exact_delays_are_short_as_well(app, rmq_worker):
    charge = app.tasks["charge"]

    @app.task(base=RetryableTask, bind=True, shared=False)
    def poll(self):
        if not self.request.retries:
            raise self.retry(countdown=24 * 3600)
        return "a day later"

    ladder = rmq_worker(app)
    assert ladder.run(poll.s()).waits == [24 * 3600]
    assert ladder.run(charge.s(0).set(countdown=3600)).result == 0


def test_the_story_of_an_endless_ladder_can_be_read_on_its_way(app, rmq_worker):
    charge, ladder = app.tasks["charge"], rmq_worker(app)
    result = ladder.send(charge.s(10**6).set(queue="mails"))
    story = ladder.wait(result, until=lambda story: len(story.parked) >= 3)
    assert story.waits[:3] == [60, 60, 60]
    with pytest.raises(NotFinishedError, match=r"Waited 0\.1 s for\ncharge.*is (RETRY|STARTED)"):
        ladder.wait(result, timeout=0.1)


def test_messages_are_settled_by_the_packages_own_request(app, rmq_worker):
    asked = []

    @app.task(base=RetryableTask, bind=True, shared=False)
    def look(self):
        asked.append(self.Request)
        asked.append(self.request.get("rmq_delay"))

    rmq_worker(app).run(look.s())
    assert asked[0] == f"{RetryableRequest.__module__}:{RetryableRequest.__name__}"
    assert asked[1].queue == "celery"


def test_threads_run_several_tasks_at_once(app, rmq_worker):
    charge, ladder = app.tasks["charge"], rmq_worker(app, pool="threads", concurrency=4)
    results = [ladder.send(charge.s(2)) for _ in range(8)]
    for result in results:
        recovered(ladder.wait(result), after=2)


def test_app_logging_and_default_app_are_restored(app, rmq_vhost):
    delay = state_of(app)
    before = dict(vars(delay)), list(app.amqp.queues), list(logging.getLogger().handlers)
    current = celery_current_app._get_current_object()  # type: ignore[attr-defined]
    with BrokerLadder(app, rmq_vhost) as ladder:
        ladder.run(app.tasks["charge"].s(1).set(queue="mails"))
    assert (dict(vars(delay)), list(app.amqp.queues), list(logging.getLogger().handlers)) == before
    assert celery_current_app._get_current_object() is current  # type: ignore[attr-defined]
    assert app.connection_for_write().hostname == "broker.invalid"
    assert type(app.backend).__name__ == "RedisBackend"


SHOP = """
import celery_rmq_delay
from celery import Celery
from celery_rmq_delay import RetryableTask

app = Celery("shop", broker="amqp://broker.invalid//")
app.conf.rmq_delay = {"tiers": ["10s", "1m", "1h"], "jitter": 0.1}
app.conf.broker_connection_retry_on_startup = True
celery_rmq_delay.install(app)


@app.task(base=RetryableTask, bind=True, name="charge", shared=False, tiers=["2h"])
def charge(self):
    if not self.request.retries:
        raise ConnectionError("The gateway does not answer.")
    return "charged"
"""


@pytest.mark.slow
def test_a_worker_process_gets_the_clock_from_the_environment(rmq_vhost, tmp_path, monkeypatch):
    (tmp_path / "clock_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    import clock_shop  # type: ignore[import-not-found]

    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "celery", "-A", "clock_shop", "worker", "--pool", "prefork", "--concurrency", "1"]
    command += ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    command += ["--include", "celery_rmq_delay.testing.scaled"]
    monkeypatch.setenv("BROKER_URL", "amqp://another.invalid//")  # the command `celery` would prefer it
    monkeypatch.setenv("CELERY_BROKER_URL", rmq_vhost)
    with LadderClock(clock_shop.app, longest="300ms") as clock, log.open("w") as output:
        environment = {**os.environ, **clock.environment}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output) as process:
            try:
                wait_for(lambda: " ready." in log.read_text() or process.poll() is not None, "the worker's start")
                clock_shop.charge.apply_async(countdown=3600)
                wait_for(lambda: ": 'charged'" in log.read_text(), "the charge")
            finally:
                process.terminate()
                process.wait(timeout=SECONDS)
    text = log.read_text()
    assert "The delays are shortened for a test: 2h become 300 ms." in text
    assert "PRECONDITION_FAILED" not in text
    clock_shop.app.close()
