"""``manage.py place_orders``: place orders from the command line."""

import secrets

from django.core.management.base import BaseCommand, CommandParser

from orders.customers import customers
from orders.services import place_order


class Command(BaseCommand):
    """Place orders of generated customers; a worker processes the payments."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the number of orders."""
        parser.add_argument("count", nargs="?", type=int, default=20, help="number of orders (default: 20)")

    def handle(self, *, count: int, **_: object) -> None:
        """Place the orders."""
        run = secrets.token_hex(3)
        for customer in customers(count, run=run):
            place_order(**customer)
        self.stdout.write(f"Placed {count} orders, {run}-0001 to {run}-{count:04}.")
