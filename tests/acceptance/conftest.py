from __future__ import annotations

import itertools
import json
import uuid
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

from celery_rmq_delay.topology.apply import ready_counts
from tests.waiting import wait_for

from .nodes import Worker, WorkerProcess
from .project import Config, make_app

POOLS = (pytest.param("prefork", marks=pytest.mark.all_brokers), "threads", "solo", "gevent")
TIERS = ["300ms", "600ms", "900ms"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.acceptance)


class Lab:
    """An app on a vhost of its own, workers for it, and looks at broker and attempts."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.app: Celery = make_app(config)
        self.redis = redis.Redis.from_url(config.backend)
        self.workers: list[Worker] = []
        self.broker: Any = None
        self._names = itertools.count(1)

    @property
    def vhost(self) -> str:
        return self.config.broker.rpartition("/")[2]

    def worker(
        self, pool: str = "prefork", concurrency: int = 2, *options: str, config: Config | None = None
    ) -> Worker:
        name = f"w{next(self._names)}"
        arguments = (
            "--without-mingle",
            "--without-gossip",
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

    def counts(self, *queues: str) -> dict[str, int | None]:
        with self.app.connection_for_read() as connection:
            return ready_counts(connection, queues)

    def count(self, queue: str) -> int:
        return self.counts(queue)[queue] or 0

    def take(self, queue: str) -> list[amqp.Message]:
        """Take all messages of a queue."""
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            while message := channel.basic_get(queue, no_ack=True):
                found.append(message)
        return found

    def parked(self) -> int:
        delays = [name for _, _, queue in self._rungs() for name in [queue.name]]
        return sum(count or 0 for count in self.counts(*delays).values())

    def _rungs(self) -> list[Any]:
        plan = self.app._rmq_delay.plan("shop", reason_routing=True)
        return plan.rung_queues(plan.ladders.values())

    def close(self) -> None:
        for worker in self.workers:
            worker.kill("SIGKILL")
        keys = self.redis.keys(f"{self.config.attempts}*")
        if keys:
            self.redis.delete(*keys)
        self.redis.close()
        # The app's own `close` leaves its connections to the garbage collector, whose warnings end some later test.
        if isinstance(self.app.backend, RedisBackend):
            self.app.backend.result_consumer.stop()
            self.app.backend.client.connection_pool.disconnect()
        self.app.pool.force_close_all()
        self.app.close()


@contextmanager
def stored_states(lab: Lab) -> Iterator[Callable[[dict[int, Any]], dict[int, set[str]]]]:
    """Write down each state that is stored in the block, however short it lasts.

    What it gives waits for all of some results, and returns the states that each has had.
    """
    stored: dict[str, set[str]] = defaultdict(set)

    def seen(results: dict[int, Any]) -> dict[int, set[str]]:
        def all_told() -> bool:
            while message := channel.get_message(timeout=0.01):
                told = json.loads(message["data"])
                stored[told["task_id"]].add(told["status"])
            return all(result.ready() and result.state in stored[result.id] for result in results.values())

        wait_for(all_told)
        return {key: stored[result.id] for key, result in results.items()}

    with lab.redis.pubsub() as channel:
        channel.psubscribe("celery-task-meta-*")
        assert wait_for(lambda: channel.get_message(timeout=0.01), "the subscription")["type"] == "psubscribe"
        yield seen


@pytest.fixture
def make_lab(rmq_vhost: str, rmq_broker: Any, rmq_redis: Any, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    labs: list[Lab] = []

    def make(
        queue_type: str = "classic",
        tiers: Any = TIERS,
        conf: dict[str, Any] | None = None,
        broker: str | None = None,
        **settings: Any,
    ) -> Lab:
        config = Config(
            broker=broker or rmq_vhost,
            backend=rmq_redis.url,
            attempts=f"attempts-{uuid.uuid4().hex}",
            queue_type=queue_type,
            rmq_delay={"tiers": tiers, **settings},
            conf=conf or {},
        )
        labs.append(Lab(config, tmp_path))
        labs[-1].broker = rmq_broker
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lab(make_lab: Callable[..., Lab], queue_type: str) -> Lab:
    return make_lab(queue_type)


@pytest.fixture
def celery_worker(lab: Lab) -> Worker:
    """pytest-celery's worker fixture, as a process instead of a container."""
    return lab.worker()


@pytest.fixture
def classic_lab(make_lab: Callable[..., Lab]) -> Lab:
    """For what the type of the queue has no part in."""
    return make_lab("classic")
