"""The load of the shop: orders, imports, a report with a bug, and messages of another team."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import date
from itertools import islice

from celery import Task
from django.db import connection

from catalogue.tasks import import_prices
from orders.customers import Customer, customers
from orders.services import place_order
from orders.tasks import sales_report
from warehouse import publish_picks

from .reconcile import Sent

SUPPLIERS = ("acme", "borealis", "cobalt", "dune", "ember", "fjord", "gull", "heron", "ivory", "juniper")
REPORTS = 5
PICKS = 10
#: Orders per second: in the first burst, and afterwards.
CROWD, TRICKLE = 25.0, 3.0


class Traffic(threading.Thread):
    """Sends all tasks of a run from its own thread; ``sent`` grows as the broker confirms.

    ``orders`` are sent in a burst; with ``endless`` others follow slowly from `trickle` until `stop`.
    """

    def __init__(self, *, run: str, orders: int, seed: int, broker_url: str, endless: bool) -> None:
        super().__init__(name="traffic", daemon=True)
        self.run_name, self.orders, self.seed = run, orders, seed
        self.broker_url, self.endless = broker_url, endless
        self.sent: list[Sent] = []
        self.error: BaseException | None = None
        #: The burst has been sent.
        self.crowd_sent = threading.Event()
        self._trickle, self._stopped = threading.Event(), threading.Event()

    def trickle(self) -> None:
        """Continue to send orders slowly."""
        self._trickle.set()

    def stop(self) -> None:
        """Stop sending, and wait for the order that is being sent."""
        self._stopped.set()
        self._trickle.set()
        self.join(timeout=10)

    def run(self) -> None:
        """Send."""
        try:
            self._others()
            shoppers = customers(None, run=self.run_name, seed=self.seed)
            self._place(islice(shoppers, self.orders), CROWD)
            self.crowd_sent.set()
            if self.endless:
                self._trickle.wait()
                self._place(shoppers, TRICKLE)
        except Exception as error:  # noqa: BLE001 - shown by the main thread
            self.error = error
            self.crowd_sent.set()
        finally:
            connection.close()

    def _others(self) -> None:
        for supplier in SUPPLIERS:
            self._send("import_prices", import_prices, supplier)
        for number in range(REPORTS):
            self._send("sales_report", sales_report, date(2026, 1, 1 + number).isoformat())
        self.sent += [Sent("warehouse.pick", task_id) for task_id in publish_picks(self.broker_url, PICKS)]

    def _send(self, kind: str, task: Task, argument: str) -> None:
        task_id = f"{kind}-{self.run_name}-{argument}"
        self.sent.append(Sent(kind, task_id))
        task.apply_async((argument,), task_id=task_id)

    def _place(self, orders: Iterable[Customer], rate: float) -> None:
        due = time.monotonic()
        for customer in orders:
            due = max(due + 1 / rate, time.monotonic() - 1)
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            reference = customer["reference"]
            # Recorded before it is sent, so that the demo reports an order that gets lost on the way.
            self.sent.append(Sent("charge", f"charge-{reference}", reference))
            place_order(**customer)
