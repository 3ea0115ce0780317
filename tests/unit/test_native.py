"""RabbitMQ's native retry: possible tiers, and its counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Queue

from celery_rmq_delay import RetryableTask, SettingsError
from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.topology.native_retry import NativeRetry, native_retry_tiers, refusal
from tests.support.apps import app_of
from tests.support.corpus import corpus

CONSTANT, GROWING = NativeRetry(Ladder((500, 500))), NativeRetry(Ladder((500, 1000, 1200)))

tiers = st.lists(st.integers(1, 100_000), min_size=1, max_size=12).map(tuple)


def counts(acquired=0, delivery=0, rejections=0):
    found = {"x-acquired-count": acquired, "x-delivery-count": delivery}
    deaths = [{"queue": "q", "reason": "rejected", "count": rejections}] if rejections else []
    return {**{name: count for name, count in found.items() if count}, "x-death": deaths}


# -- tiers -------------------------------------------------------------------------------------------------------------


@given(tiers)
def test_native_tiers_are_as_many_begin_alike_and_are_tiers_that_native_can_give(asked):
    can = native_retry_tiers(asked)
    assert len(can) == len(asked)
    assert can[0] == asked[0]
    assert native_retry_tiers(can) == can
    assert list(can) == sorted(can)


@given(tiers)
def test_the_settings_take_the_tiers_that_native_can_give_and_print_them_for_others(asked):
    can = native_retry_tiers(asked)
    written = {"retry": "native", "tiers": [f"{tier}ms" for tier in can]}
    assert parse_settings(written).default.ladder.tiers_ms == can
    if asked != can:
        with pytest.raises(SettingsError, match="Native delays grow by the first one"):
            parse_settings({**written, "tiers": [f"{tier}ms" for tier in asked]})


def test_the_error_of_other_tiers_shows_valid_tiers():
    with pytest.raises(SettingsError) as caught:
        parse_settings({"queues": {"q": {"retry": "native", "tiers": ["10s", "1m", "10m"]}}})
    assert str(caught.value) == (
        "rmq_delay.queues['q'].tiers: found ['10s', '1m', '10m']. Native delays grow by the first one, up to the last: "
        "write ['10s', '20s', '30s'], or \"retry\": \"ladder\"."
    )


@corpus(
    "more, setting, hint",
    [
        ({"jitter": 0.1}, "rmq_delay.jitter", "no jitter"),
        ({"queue_type": "classic"}, "rmq_delay.queue_type", '"quorum"'),
        ({"retry": "fast"}, "rmq_delay.retry", 'Write "ladder" or "native"'),
        ({"queues": {"q": {"jitter": 0.2}}}, "rmq_delay.queues['q'].jitter", "no jitter"),
        ({"queues": {"q": {"tiers": ["1s", "3s"]}}}, "rmq_delay.queues['q'].tiers", "['1s', '2s']"),
    ],
)
def test_settings_that_native_retry_does_not_support_are_errors(more, setting, hint):
    with pytest.raises(SettingsError) as caught:
        parse_settings({"retry": "native", "tiers": ["1s"], **more})
    assert caught.value.setting == setting
    assert hint in caught.value.hint


def test_native_is_inherited_and_can_be_taken_back():
    settings = parse_settings(
        {"retry": "native", "tiers": ["1s", "2s"], "queues": {"same": {}, "own": {"retry": "ladder", "jitter": 0.1}}}
    )
    assert [settings.for_queue(queue).retry for queue in ("any", "same", "own")] == ["native", "native", "ladder"]  # type: ignore[union-attr]
    assert parse_settings({}).default.retry == "ladder"


# -- counts ------------------------------------------------------------------------------------------------------------


def test_equal_tiers_are_returned_and_growing_ones_fail():
    assert CONSTANT.arguments() == {
        "x-delayed-retry-type": "returned",
        "x-delayed-retry-min": 500,
        "x-delayed-retry-max": 500,
        "x-delivery-limit": 1_000_000_000,
    }
    assert GROWING.arguments() == {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": 500,
        "x-delayed-retry-max": 1200,
        "x-delivery-limit": 1_000_000_000,
    }


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_the_counts_of_returned_messages_distinguish_retries_from_crashes(retries, crashes, rejections):
    headers = counts(retries + crashes, crashes + rejections, rejections)
    assert CONSTANT.requeue_count(headers) == retries
    assert CONSTANT.was_interrupted(headers, most=3) == (crashes > 0)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50))
def test_the_counts_of_failed_messages_show_a_crash_above_the_returns(returns, rejections, most):
    headers = counts(returns, returns + rejections, rejections)
    assert GROWING.requeue_count(headers) == returns
    assert GROWING.was_interrupted(headers, most) == (returns > most)
    if GROWING.takes(headers, GROWING.delay_ms(headers), most):
        assert not GROWING.was_interrupted(counts(returns + 1, returns + rejections + 1, rejections), most)


def test_the_delay_is_the_brokers():
    assert [GROWING.delay_ms(counts(each, each)) for each in range(4)] == [500, 1000, 1200, 1200]
    assert [CONSTANT.delay_ms(counts(each)) for each in range(4)] == [500] * 4


def test_a_retry_that_the_broker_would_hold_for_another_time_is_a_copy():
    assert GROWING.takes(counts(1, 1), 1000, most=3)
    assert not GROWING.takes(counts(), 1000, most=3)  # after a copy the count restarts
    assert not GROWING.takes(counts(3, 3), 1200, most=3)
    assert CONSTANT.takes(counts(40), 500, most=3)
    assert not CONSTANT.takes(counts(), 300, most=3)  # tiers of a task


@corpus("junk", ["3", -1, None, 2.5, True])
def test_an_invalid_count_in_a_header_is_no_error(junk):
    headers = {"x-acquired-count": junk, "x-delivery-count": junk}
    assert CONSTANT.requeue_count(headers) in (0, 1)
    assert GROWING.requeue_count(headers) in (0, 1)


# -- queues and tasks --------------------------------------------------------------------------------------------------


def installed(*queues, **settings):
    return app_of({"retry": "native", "tiers": ["1s"], **settings}, task_queues=list(queues))


def test_a_quorum_queue_is_declared_with_both_the_ladder_and_the_delayed_retry():
    app = installed(Queue("q", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 7}))
    declared = app.amqp.queues["q"].queue_arguments
    assert declared["x-dead-letter-exchange"] == "rmq_delay.q.dlx"
    assert (declared["x-delayed-retry-type"], declared["x-delayed-retry-min"]) == ("returned", 1000)
    assert declared["x-delivery-limit"] == 7


def test_a_classic_queue_is_declared_without_arguments_that_its_broker_would_refuse():
    app = installed(Queue("q"))
    assert app.amqp.queues["q"].queue_arguments == {"x-dead-letter-exchange": "rmq_delay.q.dlx"}


def test_a_task_of_a_native_queue_has_no_tiers_of_its_own():
    app = installed(Queue("q"), Queue("other"), queues={"other": {"retry": "ladder"}})
    app.conf.update(task_default_queue="q", task_routes={"fine": {"queue": "other"}})

    @app.task(base=RetryableTask, tiers=["1s"], name="fine", shared=False)  # type: ignore[untyped-decorator]
    def fine(): ...

    @app.task(base=RetryableTask, tiers=["1s"], name="own", shared=False)  # type: ignore[untyped-decorator]
    def own(): ...

    with pytest.raises(SettingsError, match=r"tiers of task own: found \['1s'\]\. Queue 'q' has \"retry\": \"native\""):
        app.finalize()


@corpus(
    "version, quorum, piece",
    [
        ((4, 3, 0), True, "needs RabbitMQ 4.3.1 or newer. The broker is 4.3.0"),
        ((3, 10, 8), False, "The broker is 3.10.8"),
        ((4, 3, 1), False, "It is a classic one"),
        ((4, 3, 1), True, None),
        ((5, 0, 0), True, None),
    ],
)
def test_a_queue_that_cannot_retry_natively_is_refused(version, quorum, piece):
    reason = refusal("q", Capabilities(version), quorum=quorum)
    assert (piece is None) == (reason is None)
    if reason is not None and piece is not None:
        assert piece in reason
        assert '"retry": "ladder"' in reason
