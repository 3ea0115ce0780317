"""The contenders of the benchmarks and their worker commands."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Contender:
    """One way to run the tasks: a module with an app and ``enqueue``, in a mode, on a type of queue."""

    name: str
    module: str
    mode: str
    queue_type: str
    #: Whether its failed tasks wait for a retry: then parked messages are counted, and lateness is measured.
    retries: bool = True
    #: The options of Celery's pool, and how many such workers run side by side.
    pool: tuple[str, ...] = ("-c", "2")
    workers: int = 1
    #: Settings of Celery on the command line, such as ``broker.heartbeat=0``.
    conf: tuple[str, ...] = ()
    #: The working directory of its processes, from which they import the package.
    folder: Path = CHECKOUT

    @property
    def key(self) -> str:
        """The name that ``--contenders`` selects by."""
        return f"{self.name}/{self.queue_type}"

    def worker_command(self, log_level: str, dramatiq_threads: int) -> list[str]:
        """Return the command of a worker, with two processes if ``pool`` and ``workers`` ask for no other number."""
        if self.module == _FLOOR:
            return _python(self.module, "2")
        if self.module.endswith("celery_app"):
            celery = ["celery", "-A", self.module, "worker", *self.pool, "-l", log_level]
            celery += ["--", *self.conf] if self.conf else []
            several = ["benchmarks.contenders.side_by_side", str(self.workers)] if self.workers > 1 else []
            return _python(*several, *celery)
        if self.module.endswith("dramatiq_app"):
            threads = str(dramatiq_threads)
            return _python("dramatiq", self.module, "--processes", "2", "--threads", threads, "--skip-logging")
        level = "CRITICAL" if self.mode == "retry-unlogged" else log_level
        return _python("taskiq", "worker", f"{self.module}:broker", "--workers", "2", "--log-level", level)


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


_CELERY, _DRAMATIQ, _TASKIQ, _FLOOR = (
    f"benchmarks.contenders.{name}" for name in ("celery_app", "dramatiq_app", "taskiq_app", "floor")
)

BEFORE = "celery-rmq-delay, before"
OURS, STOCK, CELERY_NATIVE = "celery-rmq-delay", "celery retry(countdown=)", "celery native delayed delivery"
IN_THREADS = "celery-rmq-delay, threads"
FAILURE, SUCCESS = "celery plain failure", "celery plain success"
DRAMATIQ, DRAMATIQ_UNLOGGED = "dramatiq", "dramatiq, failures not logged"
TASKIQ, TASKIQ_UNLOGGED = "taskiq-aio-pika", "taskiq-aio-pika, failures not logged"
FLOOR = "consume and reject, no task system"

#: This package's worker with and without events, by the type of the queues: for `events_cost`.
WITH_EVENTS, WITHOUT_EVENTS = (
    {
        kind: Contender(f"{OURS}, events {state}", _CELERY, f"ladder-events-{state}", kind)
        for kind in ("classic", "quorum")
    }
    for state in ("on", "off")
)

#: For `long_haul`: fails once; and fails none to four times, with three retries and events for the collector.
ONCE, SOAK = (
    {kind: Contender(OURS, _CELERY, mode, kind) for kind in ("classic", "quorum")}
    for mode in ("ladder-once", "ladder-soak")
)

#: Prefixes of the names of queues in which tasks wait, of all contenders.
TASK_QUEUES = ("work", "celery_delayed_", "taskiq.delay_queue")

CONTENDERS = (
    *(Contender(OURS, _CELERY, "ladder", kind) for kind in ("classic", "quorum")),
    *(Contender(STOCK, _CELERY, "stock", kind) for kind in ("classic", "quorum")),
    Contender(CELERY_NATIVE, _CELERY, "native", "quorum"),
    Contender(DRAMATIQ, _DRAMATIQ, "retry", "classic"),
    Contender(DRAMATIQ_UNLOGGED, _DRAMATIQ, "retry-unlogged", "classic"),
    *(Contender(TASKIQ, _TASKIQ, "retry", kind) for kind in ("classic", "quorum")),
    *(Contender(TASKIQ_UNLOGGED, _TASKIQ, "retry-unlogged", kind) for kind in ("classic", "quorum")),
    *(Contender(FAILURE, _CELERY, "failure", kind, retries=False) for kind in ("classic", "quorum")),
    *(Contender(SUCCESS, _CELERY, "success", kind, retries=False) for kind in ("classic", "quorum")),
)

#: Each as its documentation sets it up, for `peers`; this package on both types of queue. The floor is not one of them:
#: it shows the limit that the broker and py-amqp set for the same ladder.
_AS_DOCUMENTED = ((OURS, "classic"), (OURS, "quorum"), (STOCK, "classic"), (CELERY_NATIVE, "quorum"))
_AS_DOCUMENTED += ((DRAMATIQ, "classic"), (TASKIQ, "quorum"))
#: As many threads in as many processes as dramatiq starts by default.
_THREADS = Contender(IN_THREADS, _CELERY, "ladder", "classic", pool=("-P", "threads", "-c", "8"), workers=2)
_FOUND = tuple(each for each in CONTENDERS if (each.name, each.queue_type) in _AS_DOCUMENTED)
PEERS = (*_FOUND[:2], _THREADS, *_FOUND[2:])
FLOORS = tuple(Contender(FLOOR, _FLOOR, "ladder", kind) for kind in ("classic", "quorum"))
