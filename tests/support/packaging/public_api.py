"""The public names, used as in a project: checked by mypy and never run.

Lines with an expected error ignore its code; `mypy --strict` reports ignores without an error.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, shared_task
from celery.worker.request import Request
from kombu import Connection

import celery_rmq_delay
from celery_rmq_delay import (
    RetryableTask,
    RmqDelayError,
    SettingsError,
    exceptions,
    install,
    task_exhausted,
    task_parked,
    task_recovered,
)
from celery_rmq_delay.amqp.objects import Binding, Exchange, Objects, Queue
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.events.schema import Event
from celery_rmq_delay.testing import BrokerLadder, LadderClock, MemoryLadder, PrivateBroker, TaskStory
from celery_rmq_delay.testing import exhausted as assert_exhausted
from celery_rmq_delay.testing import parked as assert_parked
from celery_rmq_delay.testing import recovered as assert_recovered
from celery_rmq_delay.topology.exact.base import Options, Topology, arrival, due_headers
from celery_rmq_delay.topology.exact.registry import register
from celery_rmq_delay.worker.consumer import ConsumerWithoutNativeDelay

version: str = celery_rmq_delay.__version__
celery_rmq_delay.nothing_of_the_kind  # type: ignore[attr-defined]  # noqa: B018

app = Celery("shop")
app.conf.rmq_delay = {"tiers": ["10s", timedelta(minutes=1), 600]}
install(app)
install("shop")  # type: ignore[arg-type]
install(app, tiers=["10s"])  # type: ignore[call-arg]


class InvalidCard(Exception):
    """No retry helps here."""


# -- tasks -----------------------------------------------------------------------------------------------------------


@app.task(base=RetryableTask, bind=True, give_up_on=(InvalidCard,))
def charge(self: RetryableTask, order_id: int) -> str:
    if order_id < 0:
        raise InvalidCard(order_id)
    if self.request.retries < 2:
        raise self.retry(countdown=1.5, exc=ConnectionError("no answer"))
    if self.request.retries < 3:
        raise self.retry(eta=datetime.now(timezone.utc) + timedelta(hours=1))
    if self.request.retries < 4:
        raise self.retry(args=(order_id + 1,), queue="slow")
    raise self.retry(eta="tomorrow")  # type: ignore[arg-type]


@shared_task(base=RetryableTask, tiers=["1s", 2, timedelta(seconds=4)])
def ping(url: str) -> None:
    raise ConnectionError(url)


class Careful(RetryableTask):
    """A base of a project's own."""

    abstract = True
    tiers = ("1s", 2.5, timedelta(seconds=4))
    give_up_on = (InvalidCard, KeyError)
    autoretry_for = (OSError,)
    max_retries = 2

    def on_retry(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self.report(task_id)

    def report(self, task_id: str) -> str:
        return task_id


class OneDelayIsNoLadder(RetryableTask):
    tiers = "10s"  # type: ignore[assignment]


class OneClassIsNoTuple(RetryableTask):
    give_up_on = InvalidCard  # type: ignore[assignment]


@app.task(base=Careful, bind=True)
def refund(self: Careful, order_id: int) -> str:
    return self.report(str(order_id))


def order(order_id: int) -> None:
    charge.delay(order_id)
    charge.apply_async((order_id,), countdown=90)
    refund.si(order_id).apply_async(eta=datetime.now(timezone.utc))
    refund.report("by its own method")
    refund.report(order_id)  # type: ignore[arg-type]


# -- signals and errors ----------------------------------------------------------------------------------------------


@task_parked.connect
def parked(sender: RetryableTask, request: Request, attempt: int, delay_ms: int | None, **_: Any) -> None:
    print(sender.name, request.id, attempt, delay_ms)


def recovered(queue: str, **_: Any) -> None:
    print(queue)


def exhausted(reason: str, exception: BaseException, **_: Any) -> None:
    print(reason, exception)


task_recovered.connect(recovered)
task_exhausted.connect(exhausted, weak=False)


def catches() -> None:
    try:
        charge.apply_async((1,), countdown=10)
    except exceptions.DelayError as error:
        as_value: ValueError = error
        print(as_value)
    except (exceptions.UnroutableError, exceptions.NackedError, exceptions.OutcomeUnknownError) as error:
        as_publish: exceptions.PublishError = error
        print(as_publish)
    except SettingsError as error:
        print(error.setting, error.found, error.hint)
        error.advice  # type: ignore[attr-defined]  # noqa: B018
    except RmqDelayError as error:
        raise SystemExit(str(error)) from None


# -- reading events, custom topologies and workers -----------------------------------------------------


def read(body: bytes) -> str:
    event = Event.from_json(body)
    due: datetime | None = event.due_at
    event.kind = "parked"  # type: ignore[misc]
    return f"{event.task} {due}"


class Immediate:
    """A topology that holds nothing."""

    name = "immediate"
    unit_ms = 1
    max_ms = 1000
    consumed: str | None = None

    def __init__(self, options: Options) -> None:
        self.options = options

    def frame(self) -> Objects:
        return Objects(exchanges=(Exchange("in", "fanout"),), queues=(Queue("in"),), bindings=(Binding("in", "in"),))

    def arrival(self, queue: str) -> Objects:
        return arrival(self.options, queue)

    def route(self, delay_ms: int, queue: str) -> Route:
        return Route("in", queue, delay_ms, arrival(self.options, queue), due_headers(delay_ms, queue))

    def holding(self) -> tuple[str, ...]:
        return ("in",)

    def check(self, connection: Connection) -> None:
        """Accept any broker."""


class Incomplete:
    """Lacks all but the name."""

    name = "incomplete"

    def __init__(self, options: Options) -> None:
        self.options = options


register("immediate", Immediate)
register("incomplete", Incomplete)  # type: ignore[arg-type]
Exchange("in", "round-robin")  # type: ignore[arg-type]


def delay_of(topology: Topology) -> int:
    return topology.route(delay_ms=5, queue="q").delay_ms


class OwnConsumer(ConsumerWithoutNativeDelay):
    """A worker_consumer of a project's own."""


# -- tests of a project ------------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[str]:
    with PrivateBroker() as node:
        yield node.url


def test_order(rmq_vhost: str, rmq_broker: PrivateBroker) -> None:
    assert rmq_vhost.startswith(rmq_broker.url)


def test_charge(rmq_ladder: Callable[[Celery], MemoryLadder]) -> None:
    ladder = rmq_ladder(app)
    story: TaskStory = ladder.run(charge.s(7))
    waits: list[float] = story.waits
    tier: int | None = assert_parked(story, tier=1, delay=("8s", timedelta(seconds=12))).tier
    assert_recovered(story, after=2)
    error: BaseException = assert_exhausted(story, reason="gave_up", exception=InvalidCard)
    ladder.advance(timedelta(hours=1))
    print(waits, tier, error, ladder.now, ladder.send(ping.s("url")).attempts[0].exception)
    assert_recovered("an id")  # type: ignore[arg-type]
    ladder.run(charge)  # type: ignore[arg-type]


def test_charge_on_a_broker(rmq_vhost: str, rmq_clock: Callable[..., LadderClock]) -> None:
    with BrokerLadder(app, rmq_vhost, longest="1s", pool="threads", concurrency=4) as ladder:
        sent = ladder.send(refund.s(7))
        waited: TaskStory = ladder.wait(sent, timeout=120, until=lambda story: len(story.parked) == 2)
        print(waited.tiers, ladder.clock.environment, ladder.story(sent.id))
    with rmq_clock(app) as clock:
        short: int = clock.scale.shorten(60_000)
        print(short)
