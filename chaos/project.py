"""The app of a chaos run, for workers and publishers.

Each execution of a task writes a line to the ledger when it begins and when it ends.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

import celery_rmq_delay
from celery_rmq_delay import RetryableTask
from chaos.ledger import Ledger
from chaos.plans import QUEUES, Plan

VARIABLE = "RMQ_DELAY_CHAOS"


@dataclass(frozen=True)
class Config:
    """The configuration of a process of the run, passed in an environment variable."""

    name: str
    broker: str
    backend: str
    ledger: str
    seed: int
    #: The shortest tier, in seconds.
    unit: float
    #: The number of the ladder version in `ladders`.
    version: int = 0
    queue_types: dict[str, str] = field(default_factory=lambda: {"classic": "classic", "quorum": "quorum"})

    def environ(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environ(cls) -> Config:
        return cls(**json.loads(os.environ[VARIABLE]))


class Boom(Exception):
    """The exception of failing tasks."""


def ladders(unit: float) -> list[dict[str, dict[str, Any]]]:
    """Return the settings of the queues, by version: workers change from one to the next while tasks advance."""
    tiers: list[list[float]] = [[1, 2, 3, 4], [1.5, 1, 3, 4], [1, 2, 3, 4, 5]]
    return [
        {queue: {"tiers": [f"{round(each * unit * 1000)}ms" for each in version], "jitter": jitter}
         for queue, jitter in zip(QUEUES, (0.2, 0.0), strict=True)}
        for version in tiers
    ]  # fmt: skip


def make_app(config: Config) -> Celery:
    app = Celery("chaos", broker=config.broker, backend=config.backend, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_heartbeat=10,
        broker_transport_options={"confirm_publish": True},
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        result_expires=3600,
        task_default_queue=QUEUES[0],
        task_queues=[
            Queue(name, Exchange(name), name, queue_arguments={"x-queue-type": config.queue_types[name]})
            for name in QUEUES
        ],
        rmq_delay={
            "queues": ladders(config.unit)[config.version],
            "exact_unit": "100ms",
            "exact_levels": 11,
            "exact_queue_type": "quorum",
            "events": True,
            "max_crashes": 50,  # a run kills workers much more often than a real system
        },
    )
    celery_rmq_delay.install(app)
    register(app, Ledger(Path(config.ledger), config.name))
    return app


def register(app: Celery, ledger: Ledger) -> None:
    class Noted(RetryableTask):
        abstract = True

        def begin(self, plan: dict[str, Any], **more: Any) -> tuple[Plan, int]:
            found, attempt = Plan.from_json(plan), int(self.request.retries or 0)
            self._note("began", attempt, **more)
            time.sleep(found.works)
            return found, attempt

        def end(self, attempt: int, how: str) -> None:
            self._note("ended", attempt, how=how)

        def _note(self, kind: str, attempt: int, **more: Any) -> None:
            ledger.note(kind, id=self.request.id, attempt=attempt, pid=os.getpid(), boss=os.getppid(), **more)

    @app.task(name="advances", base=Noted, bind=True, shared=False)
    def advances(self: Any, plan: dict[str, Any]) -> str:
        """Raise as often as planned."""
        found, attempt = self.begin(plan)
        if attempt < found.fails:
            self.end(attempt, "fails")
            raise Boom(f"attempt {attempt}")
        self.end(attempt, "ok")
        return "done"

    @app.task(name="changes", base=Noted, bind=True, shared=False)
    def changes(self: Any, plan: dict[str, Any], number: int = 0) -> str:
        """Retry with another number."""
        found, attempt = self.begin(plan, number=number)
        if attempt < found.fails:
            self.end(attempt, "fails")
            raise self.retry(args=(plan, number + 1))
        self.end(attempt, "ok")
        return "done"

    @app.task(name="waits", base=Noted, bind=True, shared=False)
    def waits(self: Any, plan: dict[str, Any]) -> str:
        """Retry after an exact time."""
        found, attempt = self.begin(plan)
        if attempt < found.fails:
            self.end(attempt, "fails")
            raise self.retry(countdown=found.countdown)
        self.end(attempt, "ok")
        return "done"


#: The task for a plan's kind, if the name differs.
TASKS = {"hopeless": "advances", "called_later": "advances"}
