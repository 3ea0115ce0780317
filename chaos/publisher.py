"""Send the tasks of a run at a steady rate: ``python -m chaos.publisher FIRST STEP TOTAL RATE``.

It continues after the last number in its ledger, so that it may be killed at any time. Tasks without a confirm are
recorded as unknown and never sent again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from chaos.ledger import Ledger, read
from chaos.plans import Plan, plan_of
from chaos.project import TASKS, Config, make_app


def main(first: int, step: int, total: int, rate: float) -> None:
    config = Config.from_environ()
    book = Path(config.ledger)
    app, ledger = make_app(config), Ledger(book, config.name)
    sent = sum(line["kind"] == "sending" for line in read(book, f"{config.name}-"))
    begun = time.monotonic()
    for turn, number in enumerate(range(first + sent * step, total, step)):
        time.sleep(max(0.0, begun + turn / rate - time.monotonic()))
        send(app, ledger, f"{config.name}-{number:06d}", plan_of(config.seed, number, config.unit))


def send(app: Any, ledger: Ledger, task_id: str, plan: Plan) -> None:
    """Send a task once, and record whether it was confirmed."""
    ledger.note("sending", id=task_id, plan=plan.to_json())
    later = {"countdown": plan.countdown} if plan.kind == "called_later" else {}
    task = app.tasks[TASKS.get(plan.kind, plan.kind)]
    try:
        task.apply_async((plan.to_json(),), task_id=task_id, queue=plan.queue, retry=False, **later)
    except Exception as error:  # noqa: BLE001 - after any error it is unknown whether the broker has the task
        ledger.note("unknown", id=task_id, why=repr(error)[:200])
        time.sleep(0.2)
    else:
        ledger.note("confirmed", id=task_id)


if __name__ == "__main__":
    first, step, total = map(int, sys.argv[1:4])
    main(first, step, total, float(sys.argv[4]))
