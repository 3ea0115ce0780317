"""``python -m benchmarks.contenders.side_by_side COUNT celery ...``: run so many Celery workers, supervised.

A worker that ends is started again. SIGTERM stops all of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType


def main() -> None:
    count, command = int(sys.argv[1]), sys.argv[2:]
    stopping = False

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", *command, "-n", f"{number}@%h"])

    def stop(signum: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for worker in workers.values():
            worker.send_signal(signum)

    workers = {number: start(number) for number in range(count)}
    signal.signal(signal.SIGTERM, stop)
    while workers:
        pid, status = os.wait()
        number = next(number for number, worker in workers.items() if worker.pid == pid)
        workers.pop(number).returncode = os.waitstatus_to_exitcode(status)
        if not stopping:
            workers[number] = start(number)


if __name__ == "__main__":
    main()
