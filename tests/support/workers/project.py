"""The app that acceptance tests run: in worker processes through ``app``, in the tests through `make_app`.

Every attempt adds a line in Redis with the times of its begin and end, wherever it ran.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import redis
from celery import Celery, signals
from celery.exceptions import Reject
from celery.worker import WorkController

import celery_rmq_delay
from celery_rmq_delay import RetryableTask
from celery_rmq_delay.worker.request import RetryableRequest
from tests.support.workers import matrix

VARIABLE = "RMQ_DELAY_TEST_PROJECT"


@dataclass
class Config:
    """A test's configuration of its app; passed to the workers in an environment variable."""

    broker: str
    backend: str
    attempts: str
    queue_type: str = "classic"
    rmq_delay: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    install: bool = True
    #: Whether `RetryableTask` is the default task class, also of Celery's own tasks.
    for_all_tasks: bool = False
    #: The kind of event after which the worker is killed once, before the message is settled.
    killed_after: str | None = None
    #: Whether workers have Celery's event loop, which they have not on Windows.
    event_loop: bool = True
    #: Whether a ready worker sends requests to its broker continuously, until it loses its first connection.
    asks_on: bool = False

    def dumps(self) -> str:
        return json.dumps(asdict(self))


class Boom(Exception):
    """The error of failing tasks."""


class Hopeless(Exception):
    """An error on which a task gives up."""


def by_first_argument(_name: str, args: Any, *_: Any, **__: Any) -> dict[str, str]:
    """A router that needs a call."""
    return {"queue": f"shop-{args[0]}"}


def make_app(config: Config) -> Celery:
    default = {"task_cls": RetryableTask} if config.for_all_tasks else {}
    app = Celery("acceptance", broker=config.broker, backend=config.backend, set_as_current=False, **default)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_default_queue="shop",
        task_default_queue_type=config.queue_type,
        task_create_missing_queue_type=config.queue_type,
        result_extended=True,
        worker_hijack_root_logger=False,
        rmq_delay=config.rmq_delay,
    )
    app.conf.update(config.conf)
    if config.install:
        celery_rmq_delay.install(app)
    store = redis.Redis.from_url(config.backend, socket_timeout=None)  # a gate may be closed for longer
    register(app, store, config.attempts)
    return app


def register(app: Celery, store: redis.Redis, attempts: str) -> None:  # noqa: C901 - a list of tasks
    def note(task: Any, **more: Any) -> None:
        request = task.request
        line = {
            "id": request.id,
            "task": task.name,
            "retries": request.retries,
            "at": time.time(),
            "queue": (request.get("rmq_delay") or [None])[0],
            "route": [request.delivery_info.get("exchange"), request.delivery_info.get("routing_key")],
            **more,
        }
        store.rpush(attempts, json.dumps(line))

    def wait_at_the_gate() -> None:
        store.blpop([f"{attempts}:gate"])

    def fail_until(task: Any, times: int, text: str = "not yet") -> None:
        if task.request.retries < times:
            raise Boom(text)

    def hook(name: str) -> Any:
        def noted(_task: Any, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            store.rpush(f"{attempts}:hooks", json.dumps([name, task_id, repr(exc), str(einfo)[-200:]]))

        return noted

    class Noted(RetryableTask):
        abstract = True

        on_retry, on_failure = hook("on_retry"), hook("on_failure")

    def task(**options: Any) -> Any:
        return app.task(base=Noted, bind=True, shared=False, **options)

    @task(name="fails")
    def fails(self: Any, times: int) -> int:
        note(self)
        if self.request.retries < times:
            raise Boom(f"attempt {self.request.retries}")
        return self.request.retries

    class Watched(RetryableRequest):
        def on_retry(self, exc_info: Any) -> None:
            store.rpush(f"{attempts}:hooks", json.dumps(["Request.on_retry", self.id]))
            super().on_retry(exc_info)

    @task(name="watched", Request=Watched)
    def watched(self: Any) -> int:
        """Fail once, with a request class of its own."""
        note(self)
        fail_until(self, 1, "once")
        return int(self.request.retries)

    class Broken(RetryableRequest):
        def acknowledge(self) -> None:
            raise ValueError("a request class of its own")

    @task(name="broken", Request=Broken)
    def broken(self: Any) -> None:
        note(self)

    @task(name="sampled")
    def sampled(self: Any) -> None:
        """Fail once; note only times."""
        store.rpush(attempts, f"{self.request.id} {self.request.retries} {time.time()}")
        fail_until(self, 1, "once")

    @task(name="travels")
    def travels(self: Any, times: int, countdown: float | None = None) -> None:
        """Fail ``times`` times, plainly or with a countdown; note only which attempt it was."""
        store.rpush(attempts, f"{self.request.id} {self.request.retries}")
        if self.request.retries < times:
            if countdown is not None:
                raise self.retry(countdown=countdown)
            raise Boom("on the way")

    @task(name="coin")
    def coin(self: Any, fate: int) -> str:
        """Fail ``fate`` times, slowly enough to be killed."""
        time.sleep(0.005)
        fail_until(self, fate, f"attempt {self.request.retries}")
        store.sadd(f"{attempts}:recovered", self.request.id)
        return "done"

    @task(name="add")
    def add(self: Any, x: int, y: int, fail: int = 0, rejects: bool = False) -> int:
        note(self)
        if self.request.retries < fail:
            raise Reject("not yet", requeue=False) if rejects else Boom("not yet")
        return x + y

    @task(name="priority")
    def priority(self: Any) -> list[int]:
        note(self)
        fail_until(self, 1)
        return [self.request.delivery_info["priority"], self.request.retries]

    @task(name="total")
    def total(self: Any, numbers: list[int]) -> int:
        note(self)
        fail_until(self, 1)
        return sum(numbers)

    @task(name="gives_up", give_up_on=(Hopeless,))
    def gives_up(self: Any) -> None:
        note(self)
        raise Hopeless("no card will do")

    @task(name="asks_again")
    def asks_again(self: Any, times: int, gated: bool = False) -> str:
        """Requeue itself so many times; each time when the test opens the gate."""
        note(self, redelivered=self.request.delivery_info["redelivered"])
        if gated:
            wait_at_the_gate()
        if store.incr(f"{attempts}:asked:{self.request.id}") <= times:
            raise Reject("not now", requeue=True)
        return "asked"

    @task(name="own_tiers", tiers=["150ms", "150ms"])
    def own_tiers(self: Any) -> None:
        note(self)
        raise Boom("own")

    @task(name="explicit")
    def explicit(self: Any, countdown: Any = None, **options: Any) -> None:
        note(self)
        if self.request.retries == 0:
            raise self.retry(countdown=countdown, **options)

    @task(name="waits_then_retries")
    def waits_then_retries(self: Any, countdown: float) -> None:
        """Retry when the test opens the gate."""
        note(self)
        wait_at_the_gate()
        raise self.retry(countdown=countdown)

    @task(name="facts")
    def facts(self: Any, secret: str) -> dict[str, Any]:
        """Return the options of the call that the running task has."""
        request = self.request
        note(self)
        return {
            "priority": request.delivery_info["priority"],
            "expires": request.get("expires"),
            "argsrepr": request.get("argsrepr"),
            "stamps": request.get("stamps"),
            "tenant": (request.headers or {}).get("tenant"),
            "timelimit": request.get("timelimit"),
            "shadow": request.get("shadow"),
            "eta": request.get("eta"),
            "retries": request.retries,
        }

    @task(name="waits_with")
    def waits_with(self: Any, n: int, countdown: float) -> int:
        note(self, n=n)
        if n < 1:
            raise self.retry(args=(n + 1, countdown), countdown=countdown)
        return n

    @app.task(name="plain", shared=False, bind=True)
    def plain(self: Any, countdown: float) -> str:
        note(self)
        if self.request.retries == 0:
            raise self.retry(countdown=countdown)
        return "plain"

    @task(name="counts_up")
    def counts_up(self: Any, n: int) -> int:
        note(self, n=n)
        if n < 2:
            raise self.retry(args=(n + 1,))
        return n

    class Publishes(Noted):
        """Publishes with a producer and a delay of its own, whatever its caller passes."""

        abstract = True

        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            with app.producer_pool.acquire(block=True) as producer:
                return super().apply_async(args, kwargs, **{**options, "producer": producer, "countdown": 0})

    @app.task(name="publishes", base=Publishes, bind=True, shared=False)
    def publishes(self: Any, times: int) -> int:
        """Publish a retry with other arguments, so many times."""
        note(self)
        if times:
            raise self.retry(args=(times - 1,))
        return int(self.request.retries)

    @task(name="goes_on")
    def goes_on(self: Any) -> str:
        note(self)
        if self.request.retries == 0:
            self.retry(throw=False)
            return "went on"
        return "came back"

    @task(name="backs_off", retry_backoff=1, retry_jitter=False)
    def backs_off(self: Any) -> None:
        note(self)
        fail_until(self, 2)

    @task(name="limited", max_retries=1)
    def limited(self: Any) -> None:
        note(self)
        raise Boom("limited")

    @task(name="sleeps")
    def sleeps(self: Any, seconds: float, fail: int = 0) -> str:
        note(self)
        time.sleep(seconds)
        fail_until(self, fail)
        return "slept"

    @task(name="gated")
    def gated(self: Any, fail: int = 0) -> str:
        """Run until the test opens the gate, and then fail, the first ``fail`` times."""
        note(self)
        wait_at_the_gate()
        fail_until(self, fail)
        return "passed"

    def overruns(self: Any) -> str:
        note(self)
        if self.request.retries == 0:
            time.sleep(60)
        return "in time"

    task(name="overruns", time_limit=1)(overruns)
    task(name="soft", soft_time_limit=1)(overruns)

    @task(name="kills_child")
    def kills_child(self: Any, times: int) -> str:
        note(self)
        if self.request.retries < times:
            os.kill(os.getpid(), signal.SIGKILL)
        return "survived"

    @task(name="refuses")
    def refuses(self: Any) -> None:
        note(self)
        raise Reject("not here", requeue=False)

    @task(name="leaves")
    def leaves(self: Any) -> None:
        note(self)
        sys.exit(3)

    @task(name="kills_worker")
    def kills_worker(self: Any, first: int = 0) -> None:
        """Kill the whole worker, as an out-of-memory kill of its group does, from attempt ``first`` on."""
        note(self)
        fail_until(self, first)
        os.killpg(os.getsid(0), signal.SIGKILL)

    @task(name="healthy")
    def healthy(self: Any, number: int) -> int:
        note(self)
        time.sleep(0.02)
        return number

    @task(name="passes_on")
    def passes_on(self: Any, queues: list[str]) -> None:
        """Call a task for each of the queues, with the headers that this one sees; at the second attempt."""
        note(self, headers=self.request.headers)
        fail_until(self, 1)
        for queue in queues:
            healthy.apply_async((1,), queue=queue, headers=self.request.headers)

    def count(task_id: str) -> int:
        return int(store.incr(f"{attempts}:runs:{task_id}")) - 1

    if app.conf.get("matrix"):
        matrix.register(app, Noted, note, count, wait_at_the_gate)

    @app.task(name="collect_error", shared=False)
    def collect_error(request: Any, exc: Any, traceback: Any) -> None:
        store.rpush(f"{attempts}:errbacks", json.dumps([request.id, repr(exc)]))


def kill_after(kind: str, store: redis.Redis, key: str) -> None:
    """Let the worker die once, as soon as it has sent an event of ``kind``."""
    from celery_rmq_delay.events.reporter import Reporter

    emit = Reporter.emit

    def emit_and_die(self: Reporter, emitted: str, *args: Any, **options: Any) -> None:
        emit(self, emitted, *args, **options)
        if emitted == kind:
            self.send()  # a parked event would wait for others
            if store.set(key, 1, nx=True):
                os.killpg(os.getsid(0), signal.SIGKILL)

    Reporter.emit = emit_and_die


if VARIABLE in os.environ:
    config = Config(**json.loads(os.environ[VARIABLE]))
    app = make_app(config)
    if not config.event_loop:
        WorkController.should_use_eventloop = lambda _worker: False
    if config.killed_after:
        kill_after(config.killed_after, redis.Redis.from_url(config.backend), f"{config.attempts}:killed")

    first = iter([config.asks_on])

    def ask_on(channel: Any) -> None:
        while True:
            channel.flow(True)

    @signals.worker_ready.connect
    def announce(sender: Any, **_: Any) -> None:
        if next(first, False):
            sender.call_soon(ask_on, sender.task_consumer.channel)
        redis.Redis.from_url(config.backend).rpush(f"{config.attempts}:ready", sender.hostname)
