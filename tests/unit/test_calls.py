"""Routing of calls with a delay, without a broker."""

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Exchange, Queue
from kombu.common import Broadcast

import celery_rmq_delay
from celery_rmq_delay import RetryableTask, SettingsError
from celery_rmq_delay.durations import aware_eta
from celery_rmq_delay.exceptions import DelayError
from celery_rmq_delay.headers import DUE, TO
from celery_rmq_delay.publish.calls import SendTask, takes
from tests.support.apps import app_of, bare_app
from tests.support.brokers.topics import matches
from tests.support.corpus import corpus

ORDERS = Exchange("orders", "topic")
NEWS = Exchange("news", "fanout")


def make_app(**settings):
    queues = [
        Queue("shop", Exchange("")),
        Queue("audit", ORDERS, "orders.#"),
        Queue("mail", ORDERS, "orders.*.paid"),
        Queue("press", NEWS),
        Queue("sports", NEWS),
        Queue("brief", Exchange("x"), "brief", durable=False),
        Broadcast("all"),
    ]
    routes = {"mailed": {"queue": "mail"}}
    rmq_delay = {"queues": {"alone": False}, **settings}
    app = app_of(rmq_delay, task_queues=queues, task_default_queue="shop", task_routes=routes)
    for name in ("call", "mailed"):
        app.task(base=RetryableTask, name=name, shared=False)(do_nothing)
    app.task(name="plain", shared=False)(do_nothing)
    app.finalize()
    return app


def do_nothing():
    """Do nothing."""


def send_task(app):
    found: Any = app.send_task
    assert isinstance(found, SendTask)
    return found


@corpus(
    "task, options, queue",
    [
        ("call", {}, "shop"),
        ("mailed", {}, "mail"),
        ("call", {"queue": "mail"}, "mail"),
        ("call", {"queue": "new"}, "new"),
        ("call", {"queue": Queue("given", ORDERS, "a.b")}, "given"),
        ("call", {"exchange": "orders", "routing_key": "orders.eu"}, "audit"),
        ("call", {"exchange": "orders", "routing_key": "orders.eu.paid"}, None),
        ("call", {"exchange": "orders", "routing_key": "refunds"}, None),
        ("call", {"exchange": "unknown", "routing_key": "a"}, None),
        ("call", {"exchange": "news", "routing_key": "a"}, None),
        ("call", {"exchange": "news"}, "shop"),  # Celery's rule, where the default queue's exchange is direct
        ("call", {"exchange": "news", "exchange_type": "fanout"}, None),
        ("call", {"exchange": "orders", "exchange_type": "topic"}, None),
        ("call", {"queue": "sports"}, "sports"),
        ("call", {"queue": "brief"}, None),
        ("call", {"queue": "alone"}, None),
        ("call", {"queue": "all"}, None),
    ],
)
def test_a_call_is_sent_to_the_only_queue_of_its_route(task, options, queue):
    assert send_task(make_app())._destination(task, (), {}, options) == queue


def test_a_retry_of_a_message_with_an_exact_delay_goes_back_to_its_queue():
    send, headers = send_task(make_app(exact_for="all")), {DUE: 1, TO: "mail"}
    for exchange in ("rmq_delay.levels.1s.classic.deliver", "rmq_delay.arrive", ""):
        options = {"exchange": exchange, "routing_key": "mail.1.0.1", "headers": headers}
        assert send._destination("plain", (), {}, options) == "mail"
    assert send._destination("plain", (), {}, {"headers": headers, "queue": "shop"}) == "shop"


def test_a_routing_key_alone_uses_the_exchange_of_the_default_queue():
    queues = [Queue("default", ORDERS, "task.#"), Queue("feed", ORDERS, "feed.#")]
    app = app_of(task_queues=queues, task_default_queue="default")
    app.task(base=RetryableTask, name="call", shared=False)(do_nothing)
    send = send_task(app)
    assert send._destination("call", (), {}, {"routing_key": "feed.import"}) == "feed"
    assert send._destination("call", (), {}, {"routing_key": "task.x"}) == "default"
    assert send._destination("call", (), {}, {"routing_key": "feed.import", "queue": "default"}) == "default"


def test_a_router_with_changing_answers_is_called_once():
    app, answers = make_app(), iter(["mail", "audit"])
    app.conf.task_routes = (lambda name, *_, **__: {"queue": next(answers)},)
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()
    options: dict[str, Any] = {}
    assert send_task(app)._destination("call", (), {}, options) == "mail"
    assert options["queue"].name == "mail"


def test_only_retryable_tasks_are_held_unless_exact_for_is_all():
    app, every = make_app(), make_app(exact_for="all")
    assert [send_task(app)._holds(name, {}) for name in ("call", "plain", "unknown")] == [True, False, False]
    assert [send_task(every)._holds(name, {}) for name in ("call", "plain", "unknown")] == [True, True, True]


def test_an_app_on_another_transport_keeps_celerys_own_countdown():
    app = make_app()
    app.conf.broker_url = "memory://"
    assert not send_task(app)._holds("call", {})


@given(
    pattern=st.lists(st.sampled_from(["*", "#", "a", "b", "a+", ""]), min_size=1, max_size=5).map(".".join),
    key=st.lists(st.sampled_from(["a", "b", "a+", ""]), min_size=1, max_size=5).map(".".join),
)
def test_a_topic_queue_matches_the_keys_that_rabbitmq_would_route_to_it(pattern, key):
    assert takes(Queue("q", ORDERS, pattern), "orders", key) == matches(pattern, key)


def test_a_queue_matches_if_any_of_its_bindings_matches():
    from kombu import binding

    queue = Queue("q", bindings=[binding(ORDERS, "a"), binding(NEWS)])
    assert [takes(queue, exchange, "b") for exchange in ("orders", "news", "other")] == [False, True, False]


@corpus("enable_utc, hour", [(True, 12), (False, 11)])
def test_an_eta_without_a_time_zone_is_read_as_celery_reads_it(enable_utc, hour):
    app = make_app()
    app.conf.update(timezone="Europe/Berlin", enable_utc=enable_utc)
    assert aware_eta(app, datetime(2026, 1, 1, 12)).astimezone(timezone.utc).hour == hour
    assert aware_eta(app, "2026-01-01T12:00:00+00:00").hour == 12


@corpus("eta", ["tomorrow", 5, 1.5, object(), datetime(9999, 12, 31, 23, 59, 59)])
def test_an_invalid_eta_is_an_error_that_shows_the_value(eta):
    app = make_app()
    app.conf.timezone = "Europe/Berlin"
    with pytest.raises(DelayError, match="eta: found"):
        aware_eta(app, eta)


def test_exact_for_all_keeps_celerys_own_delay_queues_out_of_the_worker():
    from celery_rmq_delay.worker.consumer import ConsumerWithoutNativeDelay

    app = make_app(exact_for="all")
    assert app.conf.worker_consumer == "celery_rmq_delay.worker.consumer:ConsumerWithoutNativeDelay"
    assert not any("delayed_delivery" in step for step in ConsumerWithoutNativeDelay.Blueprint.default_steps)
    assert "celery.worker.consumer.tasks:Tasks" in ConsumerWithoutNativeDelay.Blueprint.default_steps
    assert make_app().conf.worker_consumer == "celery.worker.consumer:Consumer"


def test_exact_for_all_does_not_replace_a_consumer_of_the_users():
    app = bare_app({"exact_for": "all"}, worker_consumer=f"{__name__}:Own")
    with pytest.raises(SettingsError, match=r"exact_for: found 'all'. This turns off Celery's native delayed delivery"):
        celery_rmq_delay.install(app)


class Own:
    """A consumer of the user's."""
