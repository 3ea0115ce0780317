"""The whole system of a chaos run: servers, workers, collector, publishers, and the proxies between them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_rmq_delay.testing import PrivateBroker
from chaos import clock
from chaos.ledger import Ledger, read
from chaos.plans import QUEUES
from chaos.processes import CHECKOUT, Supervised, Supervisor, environment
from chaos.project import Config, ladders
from tests.support.brokers.proxy import Proxy
from tests.support.servers.cluster import PrivateCluster
from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.redis import PrivateRedis
from tests.support.waiting import wait_for

MANAGE = CHECKOUT / "example_django_project" / "manage.py"
EVENTS, EXHAUSTED = "rmq_delay.events", "rmq_delay.exhausted"
#: Milliseconds between two ticks of a quorum queue, and until it publishes a dead letter again.
_TUNED = (("quorum_tick_interval", 500), ("dead_letter_worker_publisher_confirm_timeout", 5000))
_DEAD_LETTERS = (
    "lists:sum([rabbit_misc:pget(messages_dlx, rabbit_quorum_queue:info(Q, [messages_dlx]), 0) "
    "|| Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_quorum_queue])"
)
#: Seconds without any progress after which a run counts as stuck.
STUCK = 90.0


@dataclass(frozen=True)
class Load:
    """The load of a run. Seconds: ``unit`` of the shortest tier, ``duration`` until all tasks are sent."""

    seed: int
    tasks: int
    duration: float
    unit: float = 2.0
    workers: int = 3
    concurrency: int = 2
    publishers: int = 2
    queue_types: tuple[str, str] = ("classic", "quorum")


class Link:
    """The connection of one client to the broker: a proxy for each of three URLs, starting with the ``first`` one.

    Each leads to another node, or all to the same.
    """

    def __init__(self, nodes: Sequence[PrivateBroker], first: int, exit_stack: ExitStack) -> None:
        ports = [node.port for node in nodes] if len(nodes) > 1 else [nodes[0].port] * 3
        self.proxies = [exit_stack.enter_context(Proxy(port)) for port in ports]
        self._first = first % len(ports)

    def in_order(self) -> list[Proxy]:
        """Return the proxies in the order in which the client tries them."""
        return [*self.proxies[self._first :], *self.proxies[: self._first]]

    @property
    def url(self) -> str:
        """The broker URL of the client: three URLs."""
        return ";".join(f"amqp://guest:guest@127.0.0.1:{proxy.port}//" for proxy in self.in_order())


class World:
    """A running system; a context manager. ``broker`` is a node, or a cluster, that is not started yet."""

    def __init__(self, folder: Path, load: Load, broker: PrivateBroker | PrivateCluster) -> None:
        self.folder, self.load, self.broker = folder, load, broker
        self.nodes: list[PrivateBroker] = broker.nodes if isinstance(broker, PrivateCluster) else [broker]
        self.book = folder / "ledger"
        self.history = folder / "history"
        self.redis, self.postgres = PrivateRedis(), PrivatePostgres()
        self.ledger = Ledger(self.book, "world")
        self.supervisor = Supervisor()
        self.links: dict[str, Link] = {}
        self.queue_types = dict(zip(QUEUES, load.queue_types, strict=True))
        self.workers: list[Supervised] = []
        self.publishers: list[Supervised] = []
        self.version = self._workers_ever = 0
        self.clock = folder / "clock"
        self._ladders: list[dict[str, Any]] = []
        self._exit, self._network = ExitStack(), ExitStack()

    # -- its life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> World:
        for folder in (self.book, self.history):
            folder.mkdir(parents=True)
        try:
            self._exit.enter_context(self._network)  # the last to go
            clock.step(self.clock, 0)
            with ThreadPoolExecutor(3) as pool:  # each mostly waits
                for started in [
                    pool.submit(each) for each in (self._start_broker, self._start_postgres, self._start_redis)
                ]:
                    started.result()
            self._exit.enter_context(self.supervisor)
            self.begin_ladder(0)
            for _ in range(self.load.workers):
                self.add_worker()
            self.collector = self.supervisor.add(self._collector())
            self.await_workers()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _start_broker(self) -> None:
        self._exit.enter_context(self.broker)
        self.tune()

    def _start_postgres(self) -> None:
        self._exit.enter_context(self.postgres)
        self.database_url = self.postgres.create_database("chaos")
        self.manage("migrate", "--verbosity", "0")

    def _start_redis(self) -> None:
        self._exit.enter_context(self.redis)

    def tune(self) -> None:
        """Make running nodes report queue lengths at once, and retry dead letters soon.

        After the next start this applies from the beginning: the dead-letter worker reads its settings only when it
        starts.
        """
        for node in self.nodes:
            if node.pid is not None:
                node.evaluate(", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in _TUNED))
                settings = ", ".join(f"{{{name}, {value}}}" for name, value in _TUNED)
                (node.log_path.parent.parent / "advanced.config").write_text(f"[{{rabbit, [{settings}]}}].\n")

    # -- its processes ---------------------------------------------------------------------------------------------

    @property
    def living_node(self) -> PrivateBroker:
        """A running node of the broker."""
        return next(node for node in self.nodes if node.pid is not None)

    def link(self, name: str) -> Link:
        """Return the connection of a client to the broker."""
        if name not in self.links:
            self.links[name] = Link(self.nodes, len(self.links), self._network)
        return self.links[name]

    def config(self, name: str, version: int | None = None) -> Config:
        """Return the configuration of a process of the app."""
        return Config(
            name=name,
            broker=self.link(name).url,
            backend=self.redis.url,
            ledger=str(self.book),
            seed=self.load.seed,
            unit=self.load.unit,
            version=self.version if version is None else version,
            queue_types=dict(self.queue_types),
        )

    def add_worker(self, version: int | None = None) -> Supervised:
        """Start one more worker, with the present ladders. The first one has its own clock, if possible."""
        self._workers_ever += 1
        name = f"w{self._workers_ever}"
        environ = clock.environ(self.clock) if self._workers_ever == 1 and clock.library() else {}
        command = [
            "-m", "celery", "-A", "chaos.worker", "worker", "--hostname", f"{name}@chaos", "--loglevel", "INFO",
            "--without-mingle", "--without-gossip", "--pool", "prefork", "--concurrency", str(self.load.concurrency),
            "--queues", ",".join(QUEUES),
        ]  # fmt: skip
        worker = Supervised(name, command, {**self.config(name, version).environ(), **environ}, self.folder)
        self.workers.append(self.supervisor.add(worker))
        return worker

    def await_workers(self) -> None:
        """Wait until every worker has logged that it is ready since its last start."""
        for worker in self.workers:
            self.await_worker(worker)

    def await_worker(self, worker: Supervised) -> None:
        """Wait until a worker has logged that it is ready.

        The limit is long because the set-up of Celery's native delayed delivery tries each node of the fail-over list
        three times, with pauses, if a node is down.
        """
        wait_for(lambda: self.is_ready(worker), f"worker {worker.name}", 300, pause=0.1)

    def is_ready(self, worker: Supervised) -> bool:
        """Return whether the running process of a worker has logged that it is ready."""
        pid = worker.pid
        return pid is not None and any(
            line["kind"] == "ready" and line["boss"] == pid for line in read(self.book, f"{worker.name}-{pid}")
        )

    def publish(self) -> None:
        """Start the publishers, which send all tasks of the load."""
        count, total = self.load.publishers, self.load.tasks
        for first in range(count):
            name = f"p{first + 1}"
            numbers = [str(first), str(count), str(total), str(total / count / self.load.duration)]
            command = ["-m", "chaos.publisher", *numbers]
            self.publishers.append(
                self.supervisor.add(Supervised(name, command, self.config(name).environ(), self.folder))
            )

    @property
    def is_publishing(self) -> bool:
        """Whether any publisher has tasks left to send."""
        return any(publisher.wanted for publisher in self.publishers)

    @property
    def collector_environ(self) -> dict[str, str]:
        """The environment for commands of the example project."""
        link = self.link("collector")
        database = self.postgres.django_database("chaos")
        return {
            "BROKER_URL": link.url,
            "REDIS_URL": self.redis.url,
            "HISTORY_URL": str(self.history),
            "POSTGRES_HOST": database["HOST"],
            "POSTGRES_PORT": str(database["PORT"]),
            "POSTGRES_DB": database["NAME"],
            "POSTGRES_USER": database["USER"],
            "POSTGRES_PASSWORD": database["PASSWORD"],
        }

    def _collector(self) -> Supervised:
        command = ["-W", "ignore", str(MANAGE), "rmq_delay_collect", "--file-seconds", "2"]
        return Supervised("collector", command, self.collector_environ, self.folder)

    def manage(self, *arguments: str) -> None:
        """Run a command of the example project to its end."""
        subprocess.run(
            [sys.executable, "-W", "ignore", str(MANAGE), *arguments],
            env=environment(**self.collector_environ),
            check=True,
        )

    # -- its ladders -----------------------------------------------------------------------------------------------

    def begin_ladder(self, version: int) -> None:
        """Use a version of the ladders for workers started from now on; earlier versions may still be in force."""
        self.version = version
        self._ladders.append({"version": version, "since": time.monotonic(), "until": None})

    def end_ladders(self) -> None:
        """Record that all workers use the present version."""
        for each in self._ladders[:-1]:
            each["until"] = each["until"] or time.monotonic()

    def note_ladders(self) -> None:
        """Write to the ledger which ladders were in force when."""
        for each in self._ladders:
            self.ledger.note("ladder", **each, settings=ladders(self.load.unit)[each["version"]])

    # -- its rest --------------------------------------------------------------------------------------------------

    def queues(self) -> dict[str, int]:
        """Return the number of messages in each queue, without records; unacknowledged ones count."""
        output = self.living_node.rabbitmqctl("list_queues", "--silent", "--formatter", "json", "name", "messages")
        listed = json.loads(output)
        return {each["name"]: each["messages"] for each in listed if not each["name"].endswith(".record")}

    def dead_letters(self) -> int:
        """Return how many dead letters of quorum queues wait for a confirm: no queue counts them among its messages."""
        return sum(int(node.evaluate(_DEAD_LETTERS)) for node in self.nodes if node.pid is not None)

    def rest(self, on_progress: Callable[[], None]) -> bool:
        """Wait until no message is left, calling ``on_progress``; return False if the run is stuck."""
        last, since = self._traces(), time.monotonic()
        empty = 0
        while time.monotonic() - since < STUCK:
            if self.supervisor.error:
                raise self.supervisor.error
            if not any(self.queues().values()) and not self.dead_letters():
                empty += 1
                if empty == 3:
                    return True
            else:
                empty = 0
            now = self._traces()
            if now != last:
                last, since = now, time.monotonic()
            on_progress()
            time.sleep(0.5)
        return False

    def _traces(self) -> int:
        return sum(path.stat().st_size for path in self.book.iterdir())

    def retire_workers(self) -> bool:
        """Shut down all workers gracefully, in parallel; return whether none had to be killed."""
        with ThreadPoolExecutor(len(self.workers)) as pool:
            return all(list(pool.map(Supervised.retire, self.workers)))

    def close_books(self) -> None:
        """Shut down workers, then the collector, gracefully, so that all their data is written."""
        self.retire_workers()
        wait_for(
            lambda: not any(self.queues().get(each) for each in (EVENTS, EXHAUSTED)), "the collector", 120, pause=0.3
        )
        self.collector.retire(60)
        self.note_ladders()
