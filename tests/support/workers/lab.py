"""Workers of an app on a vhost of its own, and the attempts of their tasks."""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import amqp
import pytest
import redis
from celery import Celery
from celery.backends.redis import RedisBackend

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.operations.parked import release
from tests.support.brokers.proxy import Proxy, elsewhere
from tests.support.corpus import slow
from tests.support.losses import Losses
from tests.support.waiting import wait_for
from tests.support.workers.nodes import Worker
from tests.support.workers.project import Config, make_app

#: Type of queue and pool. Pools and queue types are independent: the quick form has each once, the whole one all pairs.
SETUPS = (
    pytest.param("quorum", "prefork", marks=pytest.mark.brokers),
    ("classic", "threads"),
    pytest.param("classic", "prefork", marks=[pytest.mark.brokers, pytest.mark.slow]),
    *(slow("quorum", pool) for pool in ("gevent", "threads", "solo")),
    *(slow("classic", pool) for pool in ("gevent", "solo")),
)
#: Seconds: the default unit of exact delays.
UNIT = 0.5
TIERS = ["300ms", "600ms", "900ms"]
#: The counts of a lab's queues when no message is left.
EMPTY = {"shop": 0, "shop.quarantine": 0, "rmq_delay.exhausted": 0}


class Lab:
    """An app on a vhost of its own, its workers, and access to broker and attempts."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.app: Celery = make_app(config)
        self.redis = redis.Redis.from_url(config.backend)
        self.workers: list[Worker] = []
        self._names = itertools.count(1)

    @property
    def vhost(self) -> str:
        return self.config.broker.rpartition("/")[2]

    def worker(
        self,
        pool: str = "prefork",
        concurrency: int = 2,
        *options: str,
        config: Config | None = None,
        quiet: bool = True,
    ) -> Worker:
        """Start a worker; one that is not ``quiet`` exchanges events with the others."""
        name = f"w{next(self._names)}"
        alone = ("--without-mingle", "--without-gossip") if quiet else ()
        arguments = (*alone, "--pool", pool, "--concurrency", str(concurrency), "--queues", "shop", *options)
        worker = Worker(config or self.config, self.folder, name, arguments)
        self.workers.append(worker)
        worker.start_ready()
        return worker

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def attempts(self, task_id: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.redis.lrange(self.config.attempts, 0, -1)]
        return [line for line in lines if task_id is None or line["id"] == task_id]

    def waits(self, task_id: str) -> list[float]:
        times = [attempt["at"] for attempt in self.attempts(task_id)]
        return [after - before for before, after in itertools.pairwise(times)]

    def noted(self, what: str) -> list[Any]:
        return [json.loads(line) for line in self.redis.lrange(f"{self.config.attempts}:{what}", 0, -1)]

    def open_gate(self, times: int = 1) -> None:
        """Let so many attempts pass that wait at the gate, now or later."""
        self.redis.rpush(f"{self.config.attempts}:gate", *["open"] * times)

    def release(self, task_id: str) -> None:
        with self.app.connection_for_write() as connection:
            found = release(connection, plans(connection, state_of(self.app)), task_ids=[task_id])
        assert found.released == [task_id], found

    def counts(self, *queues: str) -> dict[str, int | None]:
        with self.app.connection_for_read() as connection:
            return ready_counts(connection, queues)

    def count(self, queue: str) -> int:
        return self.counts(queue)[queue] or 0

    def delay_queue(self, tier_index: int, ttl_ms: int, queue: str = "shop") -> str:
        return state_of(self.app).delay_queue(queue, tier_index, ttl_ms)

    def take(self, queue: str) -> list[amqp.Message]:
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            while message := channel.basic_get(queue, no_ack=True):
                found.append(message)
        return found

    def declare(self, arguments: dict[str, Any] | None = None) -> None:
        """Declare the queue as an app without this package does."""
        with self.app.connection_for_write() as connection:
            connection.channel().queue_declare("shop", durable=True, auto_delete=False, arguments=arguments)

    def delete(self, queue: str) -> None:
        with self.app.connection_for_write() as connection:
            connection.channel().queue_delete(queue)

    def parked(self) -> int:
        plan = state_of(self.app).plan("shop", reason_routing=True)
        delays = [queue.name for _, _, queue in plan.delay_queues(plan.ladders.values())]
        return sum(count or 0 for count in self.counts(*delays).values())

    def nothing_left(self) -> bool:
        return self.counts(*EMPTY) == EMPTY and not self.parked()

    def reset(self, losses: Losses) -> None:
        """Remove leftovers of a passed test: attempts, exhausted messages, an ended worker."""
        for worker in self.lost(losses):
            worker.restart()
        for what in ("", ":hooks", ":errbacks", ":recovered"):
            self.redis.delete(f"{self.config.attempts}{what}")
        self.take("rmq_delay.exhausted")

    def lost(self, losses: Losses) -> list[Worker]:
        """Return the workers that have ended, each of them a loss."""
        found = [worker for worker in self.workers if worker.exited]
        for worker in found:
            losses.add(f"The worker of {self.vhost} ended", worker.logs()[-4_000:])
        return found

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        if keys := self.redis.keys(f"{self.config.attempts}*"):
            self.redis.delete(*keys)
        self.redis.close()
        self.app.pool.force_close_all()  # that of all apps of this broker
        close_app(self.app)


def close_app(app: Celery) -> None:
    """Close an app that has sent tasks to a broker that other tests use.

    Its own `close` leaves its connections to the garbage collector, whose warnings would fail a later test.
    """
    close_results(app)
    app.close()


def close_results(app: Celery) -> None:
    """Close the connections of an app's results in the calling thread, as each thread has its own."""
    if isinstance(app.backend, RedisBackend):
        app.backend.result_consumer.stop()
        app.backend.result_consumer._pubsub = None  # results deleted later would open a connection to unsubscribe
        app.backend.client.connection_pool.disconnect()


@contextmanager
def proxied(lab: Lab) -> Iterator[tuple[Proxy, Config]]:
    """Yield a proxy before the broker, and the lab's settings with it."""
    with Proxy(urlsplit(lab.config.broker).port or 5672) as proxy:
        yield proxy, replace(lab.config, broker=elsewhere(lab.config.broker, proxy.port))


@contextmanager
def stored_states(lab: Lab) -> Iterator[Callable[[dict[int, Any]], dict[int, set[str]]]]:
    """Record each state that is stored in the block, also short ones.

    Yields a function that waits for some results and returns the states that each has had.
    """
    stored: dict[str, set[str]] = defaultdict(set)

    def seen(results: dict[int, Any]) -> dict[int, set[str]]:
        def all_stored() -> bool:
            while message := channel.get_message(timeout=0.01):
                stored_state = json.loads(message["data"])
                stored[stored_state["task_id"]].add(stored_state["status"])
            return all(result.ready() and result.state in stored[result.id] for result in results.values())

        wait_for(all_stored)
        return {key: stored[result.id] for key, result in results.items()}

    with lab.redis.pubsub() as channel:
        channel.psubscribe("celery-task-meta-*")
        assert wait_for(lambda: channel.get_message(timeout=0.01), "the subscription")["type"] == "psubscribe"
        yield seen
