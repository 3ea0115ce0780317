"""The app of the demo: its ladder, its one task, and its orders. Everything in the broker has the demo's name."""

from __future__ import annotations

import time

from celery import Celery

from ..installation import install
from ..task import RetryableTask

TIERS = ("2s", "5s", "10s")
#: Seconds that one attempt takes.
WORK = 0.1
#: How often each order fails before it succeeds: one after the other, more often than there are tiers, or for good.
ORDERS = (0, 1, 2, 1, 0, 3, 1, 99, 2, 0, 1, -1, 1, 2, 0, 3, 1, 99, 2, 0)


class InvalidCard(Exception):  # noqa: N818 - the word of the README
    """No retry helps here."""


def make_app(url: str, name: str) -> Celery:
    """Return an app whose queues and exchanges begin with ``name``, also those of Celery itself."""
    app = Celery(name, broker=url, set_as_current=False)
    app.conf.update(
        task_default_queue=name,
        task_ignore_result=True,
        control_exchange=f"{name}.control",
        event_exchange=f"{name}.celery-events",
        event_queue_prefix=f"{name}.receiver",
        broker_connection_retry_on_startup=True,
        rmq_delay={
            "tiers": TIERS,
            "prefix": name,
            "events": False,
            "exact_levels": 1,
        },  # few queues: the broker may be a user's
    )
    install(app)

    @app.task(base=RetryableTask, bind=True, name="charge", give_up_on=(InvalidCard,), shared=False)
    def charge(self: RetryableTask, failures: int) -> None:
        """Fail ``failures`` times, then succeed; without end and without a retry where it is negative."""
        time.sleep(WORK)
        if failures < 0:
            raise InvalidCard("The card is not valid.")
        if self.request.retries < failures:
            raise ConnectionError("The gateway does not answer.")

    return app
