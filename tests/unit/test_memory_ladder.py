"""The in-memory ladder in a user's tests: no broker, no waiting, the user's own app and tasks."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from celery.worker import state
from kombu import Queue

from celery_rmq_delay import RetryableTask, task_exhausted, task_parked
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import RmqDelayError
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.testing import MemoryLadder, NotFinishedError, exhausted, parked, recovered
from tests.support.apps import app_of

TIERS = ["10s", "1m", "10m"]

MakeLadder = Callable[[Celery], MemoryLadder]


class Declined(Exception):
    """No retry helps here."""


def make_app(**settings):
    return app_of({"tiers": TIERS, **settings}, result_backend="redis://results.invalid")


@pytest.fixture
def app():
    app = make_app(queues={"mails": {"tiers": ["5s"], "repeat_last": True}, "imports": {"jitter": 0.2}})
    yield app
    app.close()


def charge_of(app, **options):
    @app.task(shared=False, base=RetryableTask, bind=True, name="charge", **options)
    def charge(self, fails, error=""):
        if self.request.retries < fails:
            raise Declined("no card") if error == "declined" else ConnectionError("The gateway does not answer.")
        return f"charged after {self.request.retries} retries"

    return charge


def test_a_task_advances_through_its_tiers_and_recovers_without_real_waiting(app, rmq_ladder):
    charge, ladder = charge_of(app), rmq_ladder(app)
    began = time.monotonic()
    story = ladder.run(charge.s(3))
    assert time.monotonic() - began < 60
    assert story.waits == [10, 60, 600]
    assert story.tiers == [1, 2, 3]
    assert [attempt.at for attempt in story.attempts] == [0, 10, 70, 670]
    assert ladder.now == 670
    assert story.result == "charged after 3 retries"
    recovered(story, after=3)
    parked(story, tier=2, delay="1m")


def test_out_of_retries_is_exhausted_with_the_last_exception(app, rmq_ladder):
    charge, ladder = charge_of(app), rmq_ladder(app)
    story = ladder.run(charge.s(99))
    error = exhausted(story, reason="retries_used", exception=ConnectionError)
    assert str(error) == "The gateway does not answer."
    assert len(story.attempts) == 4
    assert story.is_finished


@pytest.mark.parametrize("cause", [KeyError("no card"), None])
def test_a_retry_raised_by_hand_on_the_last_tier_calls_the_errback(app, rmq_ladder, cause):
    errors: list[Any] = []

    @app.task(shared=False, base=RetryableTask)
    def by_hand():
        raise Retry("again", cause, 5)

    @app.task(shared=False)
    def errback(request, error, traceback):
        errors.append(error)

    ladder = rmq_ladder(app)
    result = by_hand.apply_async(link_error=errback.s())
    error = type(cause) if cause else MaxRetriesExceededError
    with pytest.raises(error):
        result.get()
    assert result.state == "FAILURE"
    assert [type(each) for each in errors] == [error]
    story = ladder.story(result)
    assert story.waits == [10, 60, 600]
    exhausted(story, reason="retries_used", exception=error)


@pytest.mark.parametrize(
    "options", [{"give_up_on": (Declined,)}, {"autoretry_for": (OSError,), "dont_autoretry_for": (Declined,)}]
)
def test_giving_up_takes_no_tier_and_only_exceptions_in_autoretry_for_are_retried(app, rmq_ladder, options):
    charge, ladder = charge_of(app, **options), rmq_ladder(app)
    exhausted(ladder.run(charge.s(1, error="declined")), reason="gave_up", exception=Declined)
    recovered(ladder.run(charge.s(1)), after=1)


def test_a_task_that_gives_up_runs_once_without_a_worker_and_where_its_queue_is_excluded(app):
    attempts: list[int] = []

    @app.task(shared=False, bind=True, base=RetryableTask, give_up_on=(Declined,), max_retries=2)
    def charge(self):
        attempts.append(self.request.retries)
        raise Declined

    assert charge.apply().state == "FAILURE"  # without a `Delivery`, as from an excluded queue
    assert attempts == [0]
    with pytest.raises(Declined):
        charge()
    assert attempts == [0, 0]


@pytest.mark.parametrize("how", ["retry_kwargs", "retry()"])
def test_a_task_that_limits_its_retries_as_it_runs_has_used_them(app, rmq_ladder, how):
    options = {"retry_kwargs": {"max_retries": 1}} if how == "retry_kwargs" else {}

    @app.task(shared=False, bind=True, base=RetryableTask, **options)
    def charge(self):
        if how == "retry()":
            raise self.retry(exc=ValueError("declined"), max_retries=1)
        raise ValueError("declined")

    story = rmq_ladder(app).run(charge.s())
    assert len(story.attempts) == 2
    exhausted(story, reason="retries_used", exception=ValueError)


def test_a_limit_given_to_retry_holds_for_that_message_only(app, rmq_ladder):
    @app.task(shared=False, bind=True, base=RetryableTask)
    def charge(self, limit):
        if limit is not None and self.request.retries == 0:
            raise self.retry(max_retries=limit)
        if limit is None and self.request.retries < 3:
            raise ValueError("not yet")
        return "charged"

    ladder = rmq_ladder(app)
    recovered(ladder.run(charge.s(1)))
    recovered(ladder.run(charge.s(None)))
    assert not hasattr(charge, "override_max_retries")


def test_a_hook_that_raises_delays_no_retry(app, rmq_ladder):
    class Hooked(RetryableTask):
        abstract = True

        def on_retry(self, *_):
            raise KeyError("tenant")

    @app.task(shared=False, bind=True, base=Hooked)
    def charge(self):
        if self.request.retries == 0:
            raise ValueError("declined")

    recovered(rmq_ladder(app).run(charge.s()), after=1)


def test_a_limit_beyond_the_ladder_is_refused_by_retry(app, rmq_ladder):
    @app.task(shared=False, bind=True, base=RetryableTask)
    def charge(self):
        raise self.retry(exc=ValueError("declined"), max_retries=9)

    exhausted(rmq_ladder(app).run(charge.s()), exception=RmqDelayError)  # SettingsError cannot be pickled


def test_a_task_advances_through_its_own_tiers_and_stops_at_its_own_max_retries(app, rmq_ladder):
    charge, ladder = charge_of(app, tiers=["1s", "2s", "4s"], max_retries=2), rmq_ladder(app)
    story = ladder.run(charge.s(99))
    assert story.waits == [1, 2]
    exhausted(story, reason="retries_used")


@pytest.mark.parametrize("topology", ["levels", "hold", "loop", "plugin"])
def test_exact_delays_are_kept_on_every_topology(topology, rmq_ladder):
    app = make_app(exact_delays=topology)

    @app.task(shared=False, base=RetryableTask, bind=True)
    def poll(self):
        if self.request.retries == 0:
            raise self.retry(countdown=90)
        if self.request.retries == 1:
            raise self.retry(eta=datetime.now(timezone.utc) + timedelta(seconds=30))
        return "done"

    ladder = rmq_ladder(app)
    story = ladder.run(poll.s().set(countdown=3600))
    assert story.tiers == [None, None]
    # The eta is of the real clock, which goes on until the retry is made: 30 s minus that time.
    assert [attempt.at for attempt in story.attempts] == [0, 90, pytest.approx(115, abs=6)]
    parked(story, delay="90s")
    parked(story, delay=("19s", "30s"))
    recovered(story, after=2)
    assert 3709 < ladder.now < 3740  # each topology rounds up in its own way
    app.close()


def test_changed_arguments_are_those_of_the_next_attempt(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask, bind=True)
    def walk(self, page):
        if page < 3:
            raise self.retry(args=(page + 1,))
        return page

    story = rmq_ladder(app).run(walk.s(1))
    assert [attempt.args for attempt in story.attempts] == [(1,), (2,), (3,)]
    assert story.waits == [10, 60]
    recovered(story, after=2)


def test_a_retry_may_go_on_in_another_queue(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask, bind=True)
    def move(self):
        if not self.request.retries:
            raise self.retry(queue="mails")

    story = rmq_ladder(app).run(move.s())
    assert [attempt.queue for attempt in story.attempts] == ["celery", "mails"]
    assert story.waits == [5]


def test_a_ladder_without_end_goes_on_until_the_test_ends_it(app, rmq_ladder):
    is_up = False

    @app.task(shared=False, base=RetryableTask)
    def mail():
        if not is_up:
            raise ConnectionError("no relay")
        return "sent"

    ladder = rmq_ladder(app)
    story = ladder.send(mail.s().set(queue="mails"))
    parked(story, tier=1, delay="5s")
    ladder.advance("1m")
    assert len(story.attempts) == 13
    assert story.state == "RETRY"
    is_up = True
    ladder.advance(timedelta(seconds=5))
    recovered(story, after=13)


def test_a_task_that_never_ends_is_an_error_instead_of_an_endless_run(app, monkeypatch):
    monkeypatch.setattr("celery_rmq_delay.testing.memory.MOST_DELIVERIES", 20)

    @app.task(shared=False, base=RetryableTask)
    def mail():
        raise ConnectionError("no relay")

    with MemoryLadder(app) as ladder, pytest.raises(NotFinishedError, match=r"20 deliveries.*advance"):
        ladder.run(mail.s().set(queue="mails"))


def test_jitter_puts_tasks_into_the_lanes_of_a_tier(app, rmq_ladder):
    charge, ladder = charge_of(app), rmq_ladder(app)
    stories = [ladder.run(charge.s(1).set(queue="imports", task_id=f"task-{number}")) for number in range(40)]
    waits = {story.waits[0] for story in stories}
    assert len(waits) > 1
    assert waits <= {8, 9, 10, 11, 12}
    for story in stories:
        parked(story, tier=1, delay=("8s", "12s"))
        assert [attempt.at for attempt in story.attempts] == [0, *story.waits]


def test_callbacks_signals_and_states_are_those_of_a_worker(app, rmq_ladder):
    received: list[str] = []

    class Noted(RetryableTask):
        abstract = True

        def on_retry(self, exc, task_id, args, kwargs, einfo):
            received.append(f"on_retry {exc} {self.AsyncResult(task_id).state}")

        def on_failure(self, exc, task_id, args, kwargs, einfo):
            received.append(f"on_failure {exc} {self.AsyncResult(task_id).state}")

    @app.task(shared=False, base=Noted, max_retries=1)
    def fail():
        raise ConnectionError("no")

    def on_task_retry(**_):
        received.append("task_retry")

    def on_parked(tier, delay_ms, **_):
        received.append(f"task_parked {tier} {delay_ms}")

    def on_exhausted(reason, **_):
        received.append(f"task_exhausted {reason}")

    signals.task_retry.connect(on_task_retry)
    task_parked.connect(on_parked)
    task_exhausted.connect(on_exhausted)
    ladder = rmq_ladder(app)
    result = fail.delay()
    assert result.state == "PENDING"
    ladder.advance(0)
    assert result.state == "RETRY"
    with pytest.raises(ConnectionError):
        result.get()
    assert result.state == ladder.story(result).state == "FAILURE"
    assert received == [
        "on_retry no RETRY",
        "task_retry",
        "task_parked 1 10000",
        "on_failure no FAILURE",
        "task_exhausted retries_used",
    ]


def test_chains_groups_and_chords_run_through_to_the_end(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask, bind=True)
    def add(self, *numbers):
        if not self.request.retries:
            raise ConnectionError("once")
        return sum(numbers)

    @app.task(shared=False)
    def total(numbers):
        return sum(numbers)

    ladder = rmq_ladder(app)
    assert chain(add.s(1, 2), add.s(3)).delay().get() == 6
    assert group(add.s(1), add.s(2)).delay().get() == [1, 2]
    assert chord([add.s(1), add.s(2), add.s(4)])(total.s()).get() == 7
    assert all(story.state == "SUCCESS" for story in ladder.stories)
    assert len(ladder.stories) == 2 + 2 + 3 + 1


def test_tasks_sent_by_a_task_run_as_well(app, rmq_ladder):
    charge = charge_of(app)

    @app.task(shared=False)
    def order():
        charge.delay(1)

    ladder = rmq_ladder(app)
    ladder.run(order.s())
    assert [story.name for story in ladder.stories] == [order.name, "charge"]
    recovered(ladder.stories[1], after=1)


def test_a_task_of_celerys_own_class_waits_on_the_same_clock(app, rmq_ladder):
    @app.task(shared=False, bind=True)
    def plain(self):
        if not self.request.retries:
            raise self.retry(countdown=3600)
        return "late"

    ladder = rmq_ladder(app)
    story = ladder.run(plain.s())
    assert story.result == "late"
    assert 3598 < ladder.now <= 3600
    assert story.parked == []


def test_a_task_that_expires_while_it_waits_is_revoked(app, rmq_ladder):
    charge, ladder = charge_of(app), rmq_ladder(app)
    story = ladder.run(charge.s(9).set(expires=60))
    assert story.state == "REVOKED"
    assert story.waits == [10, 60]


def test_a_task_that_is_revoked_while_it_waits_does_not_run_again(app, rmq_ladder):
    charge, ladder = charge_of(app), rmq_ladder(app)
    ladder.run(charge.s(9))  # later than the worker's control queue would expire without its consumer
    result = charge.delay(9)
    ladder.advance(0)
    result.revoke()
    ladder.run()
    assert ladder.story(result).state == "REVOKED"
    assert len(ladder.story(result).attempts) == 1


def test_ignore_is_as_in_celery_and_a_reject_is_a_failed_attempt(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask)
    def ignore():
        raise Ignore

    @app.task(shared=False, base=RetryableTask, bind=True)
    def reject(self):
        if not self.request.retries:
            raise Reject("not now", requeue=False)
        return "later"

    ladder = rmq_ladder(app)
    assert ladder.run(ignore.s()).state == "IGNORED"
    result = reject.delay()
    ladder.advance(0)
    story = ladder.story(result)
    assert [attempt.state for attempt in story.attempts] == ["RETRY"]
    assert result.state == "RETRY"
    ladder.run()
    assert [attempt.at for attempt in story.attempts] == [0, 10]
    assert story.result == "later"


def test_reject_with_requeue_runs_the_task_again_at_once_and_counts_no_attempt(app, rmq_ladder, caplog):
    seen: list[tuple[int, bool]] = []

    @app.task(shared=False, base=RetryableTask, bind=True, name="asks")
    def asks(self):
        seen.append((self.request.retries, self.request.delivery_info["redelivered"]))
        if len(seen) == 3:
            raise ConnectionError
        if len(seen) < 120:
            raise Reject("not now", requeue=True)
        return "done"

    story = rmq_ladder(app).run(asks.s())
    assert story.result == "done"
    assert story.waits == [10]
    # After the retry it is a delivery like the first one.
    assert seen == [(0, False), (0, True), (0, True), (1, False), *[(1, True)] * 116]
    assert "Task asks has requeued a message in queue celery 100 times in a row" in caplog.text


def test_a_process_that_exits_is_a_failed_attempt(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask, bind=True)
    def leave(self):
        if not self.request.retries:
            raise SystemExit(1)
        return "stayed"

    story = rmq_ladder(app).run(leave.s())
    assert story.result == "stayed"
    assert story.waits == [10]
    assert type(story.attempts[0].exception).__name__ == "WorkerLostError"


def test_a_task_that_survives_its_revocation_and_is_lost_later_is_not_retried(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask)
    def survives():
        (request,) = state.active_requests
        request.terminate(SimpleNamespace(terminate_job=lambda *_: None))  # acks, as the worker does for `revoke`
        raise SystemExit(1)

    ladder = rmq_ladder(app)
    result = survives.delay()
    ladder.run()
    assert len(ladder.story(result).attempts) == 1
    assert result.state == "FAILURE"  # as in Celery


def test_a_task_that_fails_for_good_while_its_worker_shuts_down_is_exhausted(app, rmq_ladder, monkeypatch):
    monkeypatch.setattr(state, "should_terminate", None)  # must be restored afterwards

    @app.task(shared=False, base=RetryableTask, max_retries=0)
    def fails():
        state.should_terminate = True
        raise ValueError("too late")

    ladder = rmq_ladder(app)
    story = ladder.run(fails.s())
    exhausted(story, reason="retries_used", exception=ValueError)
    assert len(story.attempts) == 1


@pytest.mark.parametrize("ends", [pytest.fail.Exception("by the test"), KeyboardInterrupt()])
def test_an_exception_that_ends_the_test_is_no_failure_of_the_task(app, ends):
    @app.task(shared=False, base=RetryableTask)
    def stops():
        raise ends

    with pytest.raises(type(ends)), MemoryLadder(app) as ladder:
        ladder.run(stops.s())
    assert not state.active_requests


def test_a_retry_that_does_not_throw_runs_beside_the_attempt(app, rmq_ladder):
    @app.task(shared=False, base=RetryableTask, bind=True)
    def goes_on(self):
        if not self.request.retries:
            self.retry(throw=False)
        return f"attempt {self.request.retries}"

    story = rmq_ladder(app).run(goes_on.s())
    assert [attempt.at for attempt in story.attempts] == [0, 10]
    assert story.result == "attempt 1"


@pytest.mark.parametrize("tiers", [["5s", "5s"], ["5s", "10s", "15s"]], ids=["returned", "failed"])
def test_retries_that_the_queue_holds_itself_wait_as_long(tiers, rmq_ladder):
    app = make_app(tiers=tiers, retry="native", queue_type="quorum")
    app.conf.task_default_queue_type = "quorum"
    charge, ladder = charge_of(app), rmq_ladder(app)
    story = ladder.run(charge.s(99))
    waits = [float(tier.removesuffix("s")) for tier in tiers]
    assert story.waits == waits
    assert [attempt.at for attempt in story.attempts] == [sum(waits[:number]) for number in range(len(waits) + 1)]
    exhausted(story, reason="retries_used")
    app.close()


def test_quorum_queues_advance_like_classic_ones(rmq_ladder):
    app = make_app(queue_type="quorum")
    app.conf.task_queues = [Queue("celery", queue_arguments={"x-queue-type": "quorum"})]
    charge, ladder = charge_of(app), rmq_ladder(app)
    assert ladder.run(charge.s(2)).waits == [10, 60]
    app.close()


def test_the_app_is_restored_afterwards(app):
    charge = charge_of(app)
    delay = state_of(app)
    queues = list(app.amqp.queues)
    before = dict(vars(delay)), dict(vars(app.amqp)), app.conf.broker_url, queues
    with MemoryLadder(app) as ladder:
        ladder.run(charge.s(1).set(queue="elsewhere"))
    assert (dict(vars(delay)), dict(vars(app.amqp)), app.conf.broker_url, list(app.amqp.queues)) == before
    assert app.connection_for_write().hostname == "broker.invalid"
    assert "broker.invalid" in app.pool.connection.as_uri()
    assert type(app.backend).__name__ == "RedisBackend"
    assert app.amqp.Connection is type(app.amqp).Connection
    assert not app.amqp.queues._consume_from  # restored: nothing selected


def test_ladders_share_no_state_with_earlier_ones(app):
    charge = charge_of(app)
    with MemoryLadder(app) as first:
        first.send(charge.s(1))
    with MemoryLadder(app) as second:
        second.run()
        assert second.stories == []
        assert second.now == 0


def test_a_result_that_no_task_can_return_and_an_app_without_the_package_are_errors(app, rmq_ladder):
    rmq_ladder(app)
    with pytest.raises(NotFinishedError, match=r"nothing is left to run.*PENDING"):
        app.AsyncResult("sent-elsewhere").get()
    with pytest.raises(RmqDelayError, match=r"call celery_rmq_delay\.install"):
        MemoryLadder(Celery("bare", set_as_current=False))


def test_tasks_advance_in_an_app_that_is_eager_otherwise(app):
    charge = charge_of(app)
    app.conf.task_always_eager = True
    with MemoryLadder(app) as ladder:
        recovered(ladder.run(charge.s(1)), after=1)
    assert app.conf.task_always_eager is True
    assert charge.delay(0).get() == "charged after 0 retries"


def test_events_are_not_sent_from_a_test(rmq_ladder, caplog):
    app = make_app(events=True)
    charge, ladder = charge_of(app), rmq_ladder(app)
    recovered(ladder.run(charge.s(1)), after=1)
    assert "event" not in caplog.text.lower()
    app.close()


def test_the_ladder_follows_the_settings_of_the_user():
    assert parse_settings({}).default.ladder.tiers_ms == (10_000, 60_000, 600_000, 3_600_000)
    app = make_app(tiers=["1h"])
    charge = charge_of(app)
    with MemoryLadder(app) as ladder:
        assert ladder.run(charge.s(1)).waits == [3600]
    app.close()
