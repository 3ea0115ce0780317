"""Events that workers emit before they settle a task."""

from datetime import datetime, timedelta, timezone

import amqp
import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.events.schema import Event, event_id
from celery_rmq_delay.operations.exhausted import Selection, requeue
from tests.support.brokers.alarms import alarm
from tests.support.brokers.connections import close_connections
from tests.support.corpus import slow
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import TIERS
from tests.support.workers.other_producer import publish, task_message

QUEUE = "rmq_delay.events"
LADDER = (300, 600, 900)


class Events:
    """All events that were taken from the queue so far."""

    def __init__(self, lab):
        self.lab, self.found = lab, list[Event]()

    def take(self):
        for message in self.lab.take(QUEUE):
            assert message.properties["content_type"] == "application/json"
            assert message.properties["delivery_mode"] == 2
            body = message.body
            self.found.append(Event.from_json(body))
        return self.found

    def of(self, task_id, number):
        """Return the events of a task in the order of their attempts, once there are so many."""

        def enough():
            found = [event for event in self.take() if event.task_id == task_id]
            return found if len(found) >= number else None

        events: list[Event] = wait_for(enough, f"{number} events of {task_id}")
        return sorted(events, key=lambda event: (event.generation, event.attempt, event.occurred_at))

    def counted(self):
        """Return the first successes by task and queue, as far as they were reported."""
        counts: dict[tuple[str, str], int] = {}
        for event in self.take():
            if event.kind == "rollup":
                assert event.ok_count
                counts[event.task, event.queue] = counts.get((event.task, event.queue), 0) + event.ok_count
        return counts


@pytest.fixture
def events(make_lab):
    return lambda *args, **settings: Events(make_lab(*args, **{"events": True, **settings}))


@pytest.mark.parametrize(
    "pool", [pytest.param("prefork", marks=pytest.mark.brokers), slow("gevent"), slow("threads"), slow("solo")]
)
def test_every_step_of_a_task_is_emitted_once(events, pool):
    stream = events()
    lab = stream.lab
    worker = lab.worker(pool)
    before = datetime.now(timezone.utc)
    recovers = lab.task("fails").apply_async((2,), {}, root_id="root", argsrepr="('password=hunter2',)")
    dies = lab.task("fails").apply_async((99,))
    good = [lab.task("healthy").delay(n) for n in range(5)]

    first, second, third = stream.of(recovers.id, 3)
    last = stream.of(dies.id, 4)
    assert all(each.get(timeout=SECONDS) == n for n, each in enumerate(good))
    worker.stop()
    wait_for(lambda: stream.counted() == {("healthy", "shop"): 5}, "the rollups of a worker that stops")

    forwarded = "forwarded" if first.kind == "forwarded" else "parked"  # classic queues of RabbitMQ 4.1 and newer
    assert [(event.kind, event.attempt) for event in (first, second, third)] == [
        (forwarded, 0), (forwarded, 1), ("recovered", 2),
    ]  # fmt: skip
    assert [(event.kind, event.attempt) for event in last] == [
        (forwarded, 0), (forwarded, 1), (forwarded, 2), ("exhausted", 3),
    ]  # fmt: skip
    assert len({event.event_id for event in stream.found}) == len(stream.found)
    for event in (first, second, third, *last):
        assert event.event_id == event_id(event.task_id or "", 0, event.attempt, event.kind)
        assert (event.task, event.queue, event.exchange, event.routing_key) == ("fails", "shop", "", "shop")
        assert (event.max_retries, event.ladder_ms, event.crashes, event.generation) == (3, LADDER, 0, 0)
        assert event.worker.startswith("celery@") or "@" in event.worker
        assert event.started_at is not None
        assert before - timedelta(seconds=1) < event.started_at <= event.occurred_at
        assert event.runtime_ms is not None
        assert 0 <= event.runtime_ms < 1_000 * BUSY
    for event in (first, second, *last[:3]):
        assert (event.tier, event.delay_ms) == (event.attempt + 1, LADDER[event.attempt])
        assert event.delay_queue == f"shop.retry.{event.tier}.{event.delay_ms}ms"
        assert event.due_at == event.occurred_at + timedelta(milliseconds=event.delay_ms or 0)
        assert event.exception_type == "tests.support.workers.project.Boom"
        assert event.exception_message == f"attempt {event.attempt}"
        assert event.frame == "workers/project.py:fails"
    assert len({event.fingerprint for event in (first, second, *last)}) == 1
    assert (first.root_id, first.args_preview) == ("root", "('password=[redacted]',)")
    assert first.first_failed_at == first.occurred_at
    assert third.first_failed_at is not None
    # When the broker got the first rejection, in whole seconds.
    assert timedelta(seconds=-1) < third.first_failed_at - first.occurred_at < timedelta(seconds=BUSY)
    assert (third.exception_type, third.due_at, third.reason) == (None, None, None)
    assert last[3].reason == "retries_used"
    assert last[3].tier is None


def test_event_and_message_of_an_exhausted_task_agree_and_a_requeue_gives_new_ids(events):
    stream = events(tiers=TIERS[:1])
    lab = stream.lab
    lab.worker()
    result = lab.task("fails").delay(99)

    event = stream.of(result.id, 2)[-1]
    with lab.app.connection_for_read() as connection:
        message = wait_for(lambda: connection.default_channel.basic_get("rmq_delay.exhausted"), "the message")
        message.channel.basic_reject(message.delivery_tag, requeue=True)
        raw = message.headers
        assert event.event_id == event_id(raw["id"], 0, raw[h.ATTEMPTS] - 1, "exhausted")
        assert (event.task, event.queue, event.exchange, event.routing_key, event.reason, event.worker) == (
            raw["task"], raw[h.QUEUE], raw[h.EXCHANGE], raw[h.ROUTING_KEY], raw[h.REASON], raw[h.WORKER],
        )  # fmt: skip
        assert (event.exception_type, event.exception_message) == (raw[h.EXCEPTION], raw[h.MESSAGE])
        settings = lab.app._rmq_delay.settings
        wait_for(lambda: requeue(connection, settings, Selection(task_ids=frozenset({result.id}))).done)

    lives = stream.of(result.id, 4)
    assert [(each.generation, each.attempt) for each in lives] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({each.event_id for each in lives}) == 4


def test_reasons_and_unusual_paths_are_emitted(events):
    stream = events()
    lab = stream.lab
    lab.worker("prefork", 2, "--queues", "shop,other")
    gives_up, explicit, counts_up = (
        lab.task("gives_up").delay(), lab.task("explicit").delay(1), lab.task("counts_up").delay(0),
    )  # fmt: skip
    limited = lab.task("limited").delay()
    killed = lab.task("kills_child").delay(1)
    moved = lab.task("explicit").delay(queue="other")
    with lab.app.connection_for_write() as connection, connection.channel() as channel:
        broken = amqp.Message(b"{", content_type="application/json", content_encoding="utf-8", correlation_id="broken")
        channel.basic_publish(broken, routing_key="shop")

    (gone,) = stream.of(gives_up.id, 1)
    assert (gone.kind, gone.reason, gone.exception_type) == (
        "exhausted",
        "gave_up",
        "tests.support.workers.project.Hopeless",
    )
    exact, back = stream.of(explicit.id, 2)
    assert (exact.kind, exact.delay_ms, exact.tier, exact.delay_queue) == ("forwarded", 1000, None, None)
    assert back.kind == "recovered"
    kinds = [(event.kind, event.tier) for event in stream.of(counts_up.id, 3)]
    assert kinds == [("forwarded", 1), ("forwarded", 2), ("recovered", None)]
    assert [(event.max_retries, event.reason) for event in stream.of(limited.id, 2)] == [(1, None), (1, "retries_used")]
    lost, survived = stream.of(killed.id, 2)
    assert (str(lost.exception_type).endswith(".WorkerLostError"), survived.kind) == (True, "recovered")
    assert [(event.queue, event.delay_queue) for event in stream.of(moved.id, 2)] == [
        ("shop", "other.retry.1.300ms"), ("other", None),
    ]  # fmt: skip
    (unread,) = stream.of("broken", 1)
    assert (unread.kind, unread.reason, unread.queue) == ("exhausted", "undecodable", "shop")


def test_without_a_reader_or_the_setting_no_event_is_emitted(make_lab):
    lab = make_lab()
    lab.worker()
    result = lab.task("fails").delay(1)
    assert result.get(timeout=SECONDS) == 1
    assert lab.counts(QUEUE) == {QUEUE: None}


@pytest.mark.parametrize("kind", ["parked", "recovered", "exhausted"])
def test_a_worker_killed_between_event_and_settling_emits_the_same_event_again(events, kind):
    stream = events(tiers=TIERS[:1])
    lab = stream.lab
    lab.config.killed_after = kind
    first = lab.worker()
    times = 99 if kind == "exhausted" else 1
    result = lab.task("fails").delay(times)
    wait_for(lambda: first.exited, "the end of the first worker")
    lab.worker()

    wait_for(result.ready, "the task's end")
    attempt = {"parked": 0, "recovered": 1, "exhausted": 1}[kind]
    wanted = event_id(result.id, 0, attempt, kind)
    wait_for(lambda: [event.event_id for event in stream.take()].count(wanted) == 2, f"two events {kind}")
    assert all(event.crashes == 0 for event in stream.found)


def test_tasks_are_settled_during_an_alarm_and_their_events_come_afterwards(events, own_broker):
    stream = events(tiers=["1h"])
    lab = stream.lab
    lab.worker("threads", 8)
    results = [lab.task("sleeps").delay(1.5, 1) for _ in range(8)]
    wait_for(lambda: len(lab.attempts()) == 8, "the start of all")
    with alarm(own_broker):
        wait_for(lambda: lab.parked() == 8, "all tasks in their delay queue")
    for result in results:
        stream.of(result.id, 1)


def test_a_worker_resumes_soon_after_a_deleted_queue_or_lost_connections(events, own_broker):
    stream = events(tiers=TIERS[:1])
    lab = stream.lab
    worker = lab.worker()
    stream.of(lab.task("fails").delay(1).id, 2)
    lab.delete(QUEUE)

    assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1
    wait_for(lambda: lab.counts(QUEUE)[QUEUE] is not None, "the queue to be declared again")
    stream.of(lab.task("fails").delay(1).id, 2)

    close_connections(own_broker)
    wait_for(lambda: worker.logs().count("Events wait for a new connection") == 2, "the worker to see it")
    stream.of(lab.task("fails").delay(1).id, 2)


def test_events_and_copies_of_a_message_have_its_life_header(events):
    stream = events(tiers=TIERS[:1])
    lab = stream.lab
    lab.worker()
    named = {h.GENERATION: 1, h.LIFE: "0123abcd"}
    fails = task_message("fails", [99], **named)
    expired = task_message("healthy", [1], expires="2026-01-31T12:00:00+00:00", **named)
    for message in (fails, expired):
        publish(lab, message)
    lives = [*stream.of(fails.headers["id"], 2), *stream.of(expired.headers["id"], 1)]
    assert [(each.life, each.generation) for each in lives] == [("0123abcd", 1)] * 3
    assert [each.kind for each in lives[1:]] == ["exhausted", "discarded"]
    assert lives[-1].reason == "expired"
    (buried,) = wait_for(lambda: lab.take("rmq_delay.exhausted"), "the exhausted message")
    assert {name: buried.headers[name] for name in named} == named
