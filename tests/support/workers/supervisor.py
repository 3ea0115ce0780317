"""Workers that are started again, and the task that kills them."""

from __future__ import annotations

import threading
from typing import Any

from tests.support.waiting import wait_for
from tests.support.workers.lab import Lab
from tests.support.workers.nodes import Worker

MAX_CRASHES = 2


class Supervisor:
    """Restarts a worker whenever it has ended, as an init system does."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers, self.restarts = workers, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for worker in self.workers:
                if worker.exited:
                    self.restarts += 1
                    worker.container.start()

    def kill(self, worker: Worker) -> None:
        """Kill a worker that runs, and wait until it is started again: so that two kills never hit the same process."""
        wait_for(lambda: not worker.exited, "a worker that runs")
        before = self.restarts
        worker.kill("SIGKILL")
        wait_for(lambda: self.restarts > before, "the worker's next start")

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()


def kills_until_exhausted(lab: Lab, fails_before: int) -> int:
    """Run a task that kills its worker, after so many plain failures, among healthy ones; return how often it kills.

    It has to end in the exhausted queue, and the others have to succeed.
    """
    worker = lab.worker("prefork", 2)
    with Supervisor([worker]):
        killer = lab.task("kills_worker").delay(fails_before)
        healthy = [lab.task("healthy").delay(number) for number in range(30)]
        wait_for(lambda: killer.ready() and all(result.ready() for result in healthy))
        exhausted = wait_for(lambda: lab.take("rmq_delay.exhausted"))

    assert [result.result for result in healthy] == list(range(30))
    assert killer.state == "FAILURE"
    (message,) = exhausted
    assert message.headers["id"] == killer.id
    assert message.headers["rmq-delay-reason"] == "crashed"
    assert message.headers["rmq-delay-crashes"] == MAX_CRASHES
    return len(lab.attempts(killer.id)) - fails_before
