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
                    worker.start()

    def kill(self, worker: Worker) -> None:
        """Kill a worker that runs, and wait until it is started again: so that two kills never hit the same process."""
        wait_for(lambda: not worker.exited, "a worker that runs")
        before = self.restarts
        worker.kill()
        wait_for(lambda: self.restarts > before, "the worker's next start")

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()


def ends_of_coins(lab: Lab, sent: dict[str, int]) -> set[str]:
    """Wait until each of the tasks `coin` has recovered or is exhausted; return the exhausted ones."""
    recovered = f"{lab.config.attempts}:recovered"

    def are_all_done() -> bool:
        done = lab.count("rmq_delay.exhausted") + int(lab.redis.scard(recovered))
        return not any(lab.counts("shop", "shop.quarantine").values()) and not lab.parked() and done >= len(sent)

    wait_for(are_all_done, "every task recovered or exhausted")
    exhausted = {message.headers["id"] for message in lab.take("rmq_delay.exhausted")}
    assert exhausted | {member.decode() for member in lab.redis.smembers(recovered)} == set(sent)
    assert {task_id for task_id, fate in sent.items() if fate == 99} <= exhausted
    return exhausted


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
