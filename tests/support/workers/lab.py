"""Workers of an app on a vhost of its own, and the attempts of their tasks."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import amqp
import pytest
import redis
from celery import Celery
from celery.backends.redis import RedisBackend

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.operations.parked import release
from tests.support.losses import Losses
from tests.support.waiting import wait_for
from tests.support.workers.nodes import Worker, WorkerProcess
from tests.support.workers.project import Config, make_app

#: Type of queue and pool. Pools and queue types are independent: the quick form has each once, the whole one all pairs.
SETUPS = (
    pytest.param("quorum", "prefork", marks=pytest.mark.brokers),
    ("classic", "threads"),
    pytest.param("classic", "prefork", marks=[pytest.mark.brokers, pytest.mark.slow]),
    *(pytest.param("quorum", pool, marks=pytest.mark.slow) for pool in ("gevent", "threads", "solo")),
    *(pytest.param("classic", pool, marks=pytest.mark.slow) for pool in ("gevent", "solo")),
)
#: Seconds: the default unit of exact delays.
UNIT = 0.5
TIERS = ["300ms", "600ms", "900ms"]


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
        arguments = (
            *(("--without-mingle", "--without-gossip") if quiet else ()),
            "--pool",
            pool,
            "--concurrency",
            str(concurrency),
            "--queues",
            "shop",
            *options,
        )
        worker = Worker(WorkerProcess(config or self.config, self.folder, name, arguments), self.app)  # type: ignore[arg-type]
        self.workers.append(worker)
        worker.ready()
        return worker

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def attempts(self, task_id: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.redis.lrange(self.config.attempts, 0, -1)]
        return [line for line in lines if task_id is None or line["id"] == task_id]

    def noted(self, what: str) -> list[Any]:
        return [json.loads(line) for line in self.redis.lrange(f"{self.config.attempts}:{what}", 0, -1)]

    def open_gate(self, times: int = 1) -> None:
        """Let so many attempts pass that wait at the gate, now or later."""
        self.redis.rpush(f"{self.config.attempts}:gate", *["open"] * times)

    def release(self, task_id: str) -> None:
        """Let a parked task come back at once."""
        with self.app.connection_for_write() as connection:
            found = release(connection, plans(connection, state_of(self.app)), task_ids=[task_id])
        assert found.released == [task_id], found

    def counts(self, *queues: str) -> dict[str, int | None]:
        with self.app.connection_for_read() as connection:
            return ready_counts(connection, queues)

    def count(self, queue: str) -> int:
        return self.counts(queue)[queue] or 0

    def delay_queue(self, tier_index: int, ttl_ms: int, queue: str = "shop") -> str:
        """Return the name of a delay queue."""
        return state_of(self.app).delay_queue(queue, tier_index, ttl_ms)

    def take(self, queue: str) -> list[amqp.Message]:
        """Take all messages of a queue."""
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            while message := channel.basic_get(queue, no_ack=True):
                found.append(message)
        return found

    def parked(self) -> int:
        delays = [name for _, _, queue in self._tiers() for name in [queue.name]]
        return sum(count or 0 for count in self.counts(*delays).values())

    def _tiers(self) -> list[Any]:
        plan = self.app._rmq_delay.plan("shop", reason_routing=True)
        return plan.delay_queues(plan.ladders.values())

    def reset(self, losses: Losses) -> None:
        """Remove leftovers of a passed test: attempts, exhausted messages, an ended worker."""
        for worker in self.lost(losses):
            worker.container.restart()
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
            worker.container.end()
        keys = self.redis.keys(f"{self.config.attempts}*")
        if keys:
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
