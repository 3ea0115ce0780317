"""The app of `plays`: the same tasks, on Celery's `Task` or on `RetryableTask`, in a worker and in a publisher.

``python -m tests.support.compatibility.shop`` calls each task, waits for its end before the next, and writes the
results to ``results.json``.
"""

import json
import os
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

# First, as in a project: some products patch Celery when they are imported, or before it is.
for _name in os.environ.get("SHOP_IMPORTS", "").split():
    import_module(_name)

from celery import Celery  # noqa: E402

import celery_rmq_delay  # noqa: E402
from celery_rmq_delay import RetryableTask  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

WAIT = 0.2
RETRIES = 2
IS_RETRYABLE = os.environ["SHOP_KIND"] == "retryable"


class Boom(Exception):
    """An error that a retry may help with."""


class Hopeless(Exception):
    """An error that no retry helps with."""


app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_BACKEND"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_extended=True,
    task_default_queue="shop",
    task_default_queue_type=os.environ["SHOP_QUEUE_TYPE"],
    worker_hijack_root_logger=False,
)
if IS_RETRYABLE:
    app.conf.rmq_delay = {"tiers": [WAIT] * RETRIES}
    celery_rmq_delay.install(app)


def task(function: Any) -> Any:
    """Register a task that is retried on errors, except on `Hopeless`."""
    kind: dict[str, Any] = (
        {"base": RetryableTask, "give_up_on": (Hopeless,)}
        if IS_RETRYABLE
        else {
            "autoretry_for": (Exception,),
            "dont_autoretry_for": (Hopeless,),
            "default_retry_delay": WAIT,
            "max_retries": RETRIES,
        }
    )
    return app.task(bind=True, name=function.__name__, **kind)(function)


@task
def succeeds(self: Any) -> str:
    return "at once"


@task
def recovers(self: Any) -> str:
    if self.request.retries == 0:
        raise Boom("not yet")
    return "recovered"


@task
def fails(self: Any) -> None:
    """Fail until all retries are used."""
    raise Boom(f"attempt {self.request.retries}")


@task
def gives_up(self: Any) -> None:
    raise Hopeless("no card will do")


@task
def asks(self: Any) -> str:
    """Retry once by itself, with an exact delay."""
    if self.request.retries == 0:
        raise self.retry(exc=Boom("later"), countdown=WAIT)
    return "asked"


@task
def changes(self: Any, number: int = 0) -> int:
    """Retry once with other arguments."""
    if number == 0:
        raise self.retry(args=(number + 1,))
    return number


@task
def calls(self: Any) -> str:
    """Fail once, and then call another task."""
    if self.request.retries == 0:
        raise Boom("not yet")
    called: str = succeeds.delay().id
    return called


@task
def last(self: Any) -> None:
    """Fail for good, so that each product reports it: then it has reported all earlier attempts."""
    raise Hopeless("the last one")


def publish() -> None:
    found = {}
    publishing = getattr(import_module("after_product"), "publishing", nullcontext)
    for each in (succeeds, recovers, fails, gives_up, asks, changes, calls, last):
        with publishing(each.name):
            result = each.delay()
        wait_for(result.ready, f"the end of {each.name}")
        found[each.name] = {"id": result.id, "state": result.state, "result": repr(result.result)}
    Path(os.environ["SHOP_FOLDER"], "results.json").write_text(json.dumps(found))


if __name__ == "__main__":
    publish()
