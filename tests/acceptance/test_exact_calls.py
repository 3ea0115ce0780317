"""A countdown or an eta, of a call and of a retry: exact, and held by the broker alone."""

import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from celery import chain, chord, group
from kombu import Exchange, Queue

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.operations.exhausted import Selection, requeue
from tests.support.corpus import slow
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import EMPTY, SETUPS, UNIT
from tests.support.workers.other_producer import publish, task_message
from tests.support.workers.roles import NO_LEVELS, Permissions, add_user, permit

#: Seconds that a task waits while a test inspects it, and longer ones for a slow machine.
DELAYS = (4.2, 16.8, 67.2)


@pytest.fixture
def classic_exact(make_lab):
    return make_lab("classic", exact_unit=UNIT)


def is_due(waited, delay):
    """Return whether a wait is not too short, and no longer than rounding and a busy machine explain."""
    return delay <= waited < delay + UNIT + BUSY


def runs_when_due(lab, seconds, **headers):
    """Publish as another producer with an eta in so many seconds; return the only attempt, made when it is due."""
    eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    sent = task_message("facts", ["x"], eta=eta.isoformat(), **headers)
    publish(lab, sent)
    wait_for(lambda: lab.attempts(sent.headers["id"]))
    (attempt,) = lab.attempts(sent.headers["id"])
    assert is_due(attempt["at"] - eta.timestamp(), 0)
    return attempt


def nothing_is_held(lab):
    """Return whether no worker holds a task or its message."""
    inspect = lab.app.control.inspect(timeout=10, limit=1)
    held = [found for found in (inspect.scheduled(), inspect.reserved(), inspect.active()) if found]
    return len(held) == 3 and not any(tasks for found in held for tasks in found.values())


def waits_in_the_broker(lab, *task_ids, attempts=0):
    """Wait until no worker holds a task; return whether these tasks, which ran so often, have not run again.

    If they were due before the check, the test repeats with a longer delay.
    """
    wait_for(lambda: nothing_is_held(lab))
    return sum(len(lab.attempts(task_id)) for task_id in task_ids) == attempts


@pytest.mark.parametrize(("queue_type", "pool"), SETUPS)
def test_a_call_with_a_countdown_runs_when_it_is_due_and_no_worker_holds_it(running):
    add = running.task("add")

    def last_one_waits_in_the_broker(longest):
        start = time.time()
        results = {delay: add.apply_async((1, 2), countdown=delay) for delay in (0, -5, 0.3, 1, longest)}
        results[2] = add.apply_async((1, 2), eta=datetime.now(timezone.utc) + timedelta(seconds=2))

        wait_for(lambda: results[0].ready() and results[-5].ready())
        waits = waits_in_the_broker(running, results[longest].id)
        wait_for(lambda: all(result.ready() for result in results.values()))

        for delay, result in results.items():
            (attempt,) = running.attempts(result.id)
            assert is_due(attempt["at"] - start, max(0, delay)), (delay, attempt["at"] - start)
            assert (attempt["queue"], attempt["route"], attempt["retries"]) == ("shop", ["", "shop"], 0)
        return waits

    assert any(last_one_waits_in_the_broker(delay) for delay in DELAYS), "a worker holds tasks that are not due"


@pytest.mark.parametrize(("queue_type", "pool"), SETUPS)
def test_a_retry_with_a_countdown_waits_exactly_that_long_and_the_ladder_goes_on(running):
    result, changed = running.task("explicit").delay(1.2), running.task("waits_with").delay(0, 1.2)
    failing = running.task("add").apply_async((1, 1, 2), countdown=1)
    backs_off = running.task("backs_off").delay()

    assert (result.get(timeout=SECONDS), changed.get(timeout=SECONDS)) == (None, 1)
    assert failing.get(timeout=SECONDS) == 2
    wait_for(lambda: backs_off.state == "SUCCESS")

    for task, waits in ((result, [1.2]), (changed, [1.2]), (backs_off, [1, 2])):
        assert [is_due(*each) for each in zip(running.waits(task.id), waits, strict=True)] == [True] * len(waits)
    assert [(each["n"], each["retries"], each["route"]) for each in running.attempts(changed.id)] == [
        (0, 0, ["", "shop"]), (1, 1, ["", "shop"]),
    ]  # fmt: skip
    assert [each["retries"] for each in running.attempts(failing.id)] == [0, 1, 2]
    assert running.count("rmq_delay.exhausted") == 0


def test_expires_of_protocol_1_does_not_end_the_wait_for_a_countdown(make_lab, own_broker):
    lab = make_lab(conf={"task_protocol": 1})
    lab.task("add").apply_async((1, 2), countdown=600, expires=300)
    listed = own_broker.rabbitmqctl("--silent", "list_queues", "-p", lab.vhost, "name", "messages")
    (waiting,) = [name for name, count in map(str.split, listed.splitlines()) if count == "1"]
    (message,) = lab.take(waiting)
    assert "expiration" not in message.properties


@pytest.mark.brokers
def test_the_options_of_a_call_besides_its_countdown_are_kept_when_it_runs(running):
    signature = running.task("facts").s("4111")
    signature.stamp(order="o-1")

    result = signature.apply_async(
        countdown=1,
        expires=60,
        priority=3,
        argsrepr="('***',)",
        headers={"tenant": "north"},
        time_limit=50,
        shadow="facts-of-north",
    )
    facts = result.get(timeout=SECONDS)
    (attempt,) = running.attempts(result.id)

    assert facts.pop("expires") is not None
    assert attempt["at"] - BUSY < datetime.fromisoformat(facts.pop("eta")).timestamp() <= attempt["at"]
    assert facts.pop("stamps")["order"] in ("o-1", ["o-1"])
    assert facts == {
        "priority": 3,
        "argsrepr": "('***',)",
        "tenant": "north",
        "timelimit": [50, None],
        "shadow": "facts-of-north",
        "retries": 0,
    }


def test_a_call_that_expires_before_it_is_due_is_revoked_when_it_is_due(running_classic):
    start = time.time()
    result = running_classic.task("facts").apply_async(("x",), countdown=2, expires=0.5)

    wait_for(result.ready)

    assert result.state == "REVOKED"
    assert time.time() - start >= 2
    assert running_classic.attempts(result.id) == []


@pytest.mark.brokers
def test_a_worker_parks_a_message_whose_eta_is_yet_to_come(running):
    """Another producer, or a call by name in a process that does not have the task."""

    def is_parked(delay):
        eta = datetime.now(timezone.utc) + timedelta(seconds=delay)
        sent = task_message("facts", ["x"], eta=eta.isoformat())
        publish(running, sent)
        task_id = sent.headers["id"]

        wait_for(lambda: running.count("shop") == 0)
        parked = waits_in_the_broker(running, task_id)
        wait_for(lambda: running.attempts(task_id))

        (attempt,) = running.attempts(task_id)
        assert is_due(attempt["at"] - eta.timestamp(), 0)
        assert attempt["retries"] == 0
        facts = running.app.AsyncResult(task_id).get(timeout=SECONDS)
        assert (facts["tenant"], facts["priority"]) == ("north", 3)
        return parked

    assert any(is_parked(delay) for delay in DELAYS), "a worker holds tasks that are not due"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"exchange": "somewhere", "routing_key": "else"}, "Pass queue= instead"),
        ({"countdown": "soon"}, "countdown: found 'soon'. Write a number of seconds."),
    ],
)
def test_a_retry_that_cannot_be_made_is_a_failed_attempt_whose_error_has_the_fix(running_classic, options, error):
    result = running_classic.task("explicit").delay(**options)
    wait_for(result.ready)
    name, _, found, _ = running_classic.noted("hooks")[0]
    assert (name, error in found) == ("on_retry", True)


def test_a_message_with_an_eta_keeps_its_count_and_an_invalid_one_is_exhausted(running_classic):
    assert runs_when_due(running_classic, 2, retries=1)["retries"] == 1, "an old worker has published this retry"
    worker = running_classic.workers[0]
    sent = task_message("facts", ["x"], eta="tomorrow")
    publish(running_classic, sent)

    wait_for(lambda: running_classic.count("rmq_delay.exhausted") == 1)

    assert "eta: found 'tomorrow'. Write a datetime." in worker.logs()
    assert running_classic.attempts(sent.headers["id"]) == []


def test_a_message_that_cannot_be_parked_waits_for_another_try_and_is_no_crash(classic_exact):
    worker = classic_exact.worker()
    runs_when_due(classic_exact, 1)  # the first use declares the levels
    level = classic_exact.app._rmq_delay.exact.topologies[0].holding()[2]  # two seconds
    classic_exact.delete(level)
    runs_when_due(classic_exact, 2)
    assert "waits in this worker for another try" in worker.logs()
    assert classic_exact.counts(*EMPTY) == EMPTY


@pytest.mark.slow
@pytest.mark.brokers
def test_a_refused_published_retry_is_parked_instead_and_its_copy_delays_no_other(make_lab, own_broker):
    lab = make_lab("classic", exact_unit=UNIT)
    url = add_user(own_broker, lab.config.broker, Permissions(".*", ".*", ".*"))
    worker = lab.worker(config=replace(lab.config, broker=url))
    runs_when_due(lab, 1)  # the first use declares the levels
    permit(own_broker, url, NO_LEVELS)

    refused = [lab.task("waits_with").delay(0, 0.6) for _ in range(2)]
    wait_for(lambda: worker.logs().count("its old message is parked instead") >= len(refused))
    given_up = [lab.task("gives_up").delay() for _ in range(200)]
    # A refusal ends the connection, so that a copy without its confirm is sent again.
    wait_for(lambda: lab.count("rmq_delay.exhausted") >= len(given_up))

    def refusals():
        return own_broker.log_path.read_text(errors="replace").count(f"in vhost '{lab.vhost}' refused")

    wait_for(lambda: refusals() >= len(refused) * 4, "another try of each after 1, 2 and 4 seconds")
    time.sleep(5)
    assert refusals() <= len(refused) * 12, "the pauses grow"
    log = worker.logs()
    assert 1 <= log.count("The message waits in this worker for another try") <= 10
    assert re.search(r"access to (exchange|queue) .* Give the broker's user the permissions? \*write\*", log)
    assert log.count("No connection for publishing copies") <= 4, "a refusal is no lost connection"
    assert "An exchange or queue for copies is missing" not in log
    assert [len(lab.attempts(result.id)) for result in refused] == [1, 1]
    permit(own_broker, url, Permissions(".*", ".*", ".*"))

    assert [result.get(timeout=SECONDS) for result in refused] == [1, 1]
    for result in refused:
        assert [attempt["n"] for attempt in lab.attempts(result.id)] == [0, 0, 1]
    exhausted = {message.headers["id"] for message in lab.take("rmq_delay.exhausted")}
    assert exhausted == {result.id for result in given_up}, "a refused retry is no failure of its task"


@pytest.mark.parametrize(("kind", "pool"), [("exchange", "prefork"), ("queue", "prefork"), slow("exchange", "gevent")])
def test_a_worker_declares_objects_deleted_before_a_retry_again(classic_exact, kind, pool):
    worker = classic_exact.worker(pool)
    assert classic_exact.task("explicit").delay(0.6).get(timeout=SECONDS) is None  # the first use declares the levels
    entry = classic_exact.app._rmq_delay.exact.topologies[0].route(600, "shop").exchange  # a level's queue has its name
    with classic_exact.app.connection_for_write() as connection:
        channel = connection.default_channel
        (channel.exchange_delete if kind == "exchange" else channel.queue_delete)(entry)

    result = classic_exact.task("explicit").delay(0.6)

    assert result.get(timeout=SECONDS) is None
    assert [attempt["retries"] for attempt in classic_exact.attempts(result.id)] == [0, 1]
    assert not worker.exited


@pytest.mark.parametrize("compression", ["gzip", slow("bzip2")])
def test_compressed_messages_are_copied_parked_exhausted_and_requeued_as_they_are(make_lab, compression):
    lab = make_lab("classic", exact_unit=UNIT, conf={"task_compression": compression})
    lab.worker()
    assert lab.task("explicit").apply_async((0.6,), countdown=0.6).get(timeout=SECONDS) is None
    sent = lab.task("gives_up").delay()
    wait_for(lambda: lab.count("rmq_delay.exhausted"))
    with lab.app.connection_for_write() as connection:
        settings = lab.app._rmq_delay.settings
        assert len(requeue(connection, settings, Selection(everything=True)).done) == 1

    wait_for(lambda: len(lab.attempts(sent.id)) == 2)
    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert message.headers["rmq-delay-reason"] == "gave_up"


def test_a_delay_above_the_longest_is_held_several_times(make_lab):
    lab = make_lab("classic", exact_unit=UNIT, exact_levels=2)  # at most 1.5 s at a time
    lab.worker()
    runs_when_due(lab, 4)


def test_a_call_to_an_exchange_reaches_each_of_its_queues_once_and_when_it_is_due(classic_exact):
    orders = Exchange("orders", "topic")
    classic_exact.app.conf.task_queues = [
        Queue("shop", Exchange("")),
        Queue("audit", orders, "orders.#"),
        Queue("mail", orders, "orders.*.paid"),
    ]
    classic_exact.worker("threads", 2, "--queues", "shop,audit,mail")
    with classic_exact.app.connection_for_write() as connection:
        for name in ("audit", "mail"):
            classic_exact.app.amqp.queues[name](connection.default_channel).declare()
    add, start = classic_exact.task("add"), time.time()
    both = add.apply_async((1, 2), countdown=1.5, exchange="orders", routing_key="orders.eu.paid")
    one = add.apply_async((1, 2), countdown=1.5, exchange="orders", routing_key="orders.eu")

    wait_for(lambda: len(classic_exact.attempts(both.id)) == 2 and classic_exact.attempts(one.id))
    time.sleep(UNIT)

    assert {each["queue"] for each in classic_exact.attempts(both.id)} == {"audit", "mail"}
    assert [each["queue"] for each in classic_exact.attempts(one.id)] == ["audit"]
    for each in (*classic_exact.attempts(both.id), *classic_exact.attempts(one.id)):
        assert is_due(each["at"] - start, 1.5)
        assert each["route"][0] == "orders"


def test_chains_groups_and_chords_wait_for_the_countdowns_of_their_parts(running_classic):
    add, total = running_classic.task("add"), running_classic.task("total")
    start = time.time()

    chained = chain(add.s(1, 1).set(countdown=1), add.s(10).set(countdown=1))
    assert chained.apply_async().get(timeout=SECONDS) == 12
    assert time.time() - start >= 2
    assert group(add.s(n, n) for n in range(3)).apply_async(countdown=1).get(timeout=SECONDS) == [0, 2, 4]
    assert chord([add.s(n, n).set(countdown=1) for n in range(3)], total.s()).delay().get(timeout=SECONDS) == 6


def celery_native_queues(app):
    """Return Celery's own delay queues with their messages."""
    with app.connection_for_read() as connection:
        return ready_counts(connection, [f"celery_delayed_{level}" for level in range(28)])


def test_a_retryable_task_never_enters_celerys_own_delay_queues(make_lab):
    lab = make_lab(
        "quorum", exact_unit=UNIT, conf={"task_default_exchange_type": "topic", "task_default_exchange": "x"}
    )
    lab.worker()
    add, explicit = lab.task("add"), lab.task("explicit")

    def wait_elsewhere(delay):
        start = time.time()
        called = [add.apply_async((1, 2), countdown=delay) for _ in range(5)]
        retried = [explicit.delay(delay) for _ in range(5)]
        results = called + retried

        wait_for(lambda: all(lab.attempts(result.id) for result in retried))
        assert set(celery_native_queues(lab.app).values()) == {0}, "declared by the worker's bootstep, and empty"
        all_wait = waits_in_the_broker(lab, *(result.id for result in results), attempts=5)
        wait_for(lambda: all(result.ready() for result in results))

        assert is_due(lab.attempts(called[0].id)[0]["at"] - start, delay)
        assert [len(lab.attempts(result.id)) for result in results] == [1] * 5 + [2] * 5
        return all_wait

    assert any(wait_elsewhere(delay) for delay in DELAYS), "they do not wait in the broker"


def test_with_exact_for_all_every_task_waits_in_the_broker_without_celerys_delay_queues(make_lab):
    lab = make_lab(
        "quorum",
        exact_unit=UNIT,
        exact_for="all",
        conf={"task_default_exchange_type": "topic", "task_default_exchange": "x"},
    )
    lab.worker()

    def retry_waits_in_the_broker(delay):
        start = time.time()
        called = lab.app.send_task("plain", (delay,), countdown=1.5)

        wait_for(lambda: lab.attempts(called.id))
        waits = waits_in_the_broker(lab, called.id, attempts=1)
        assert called.get(timeout=SECONDS) == "plain"

        first, second = lab.attempts(called.id)
        assert is_due(first["at"] - start, 1.5)
        assert is_due(second["at"] - first["at"], delay)
        return waits

    assert any(retry_waits_in_the_broker(delay) for delay in DELAYS), "a worker holds tasks that are not due"
    assert set(celery_native_queues(lab.app).values()) == {None}


def test_a_broker_without_the_plugin_is_reported_and_the_next_topology_is_used(make_lab):
    refused = make_lab("classic", exact_delays="plugin")
    with pytest.raises(AssertionError, match="the broker does not know the exchange type x-delayed-message"):
        refused.worker()
    lab = make_lab("classic", exact_delays=["plugin", "levels"], exact_unit=UNIT, prefix="second")
    worker = lab.worker()

    result = lab.task("add").apply_async((1, 2), countdown=1)

    assert result.get(timeout=SECONDS) == 3
    assert "Exact delays go on with the next of exact_delays" in worker.logs()
