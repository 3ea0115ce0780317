"""The actions of a customer, for views, commands and the demo."""

from django.db import transaction

from .models import Order
from .tasks import charge


def place_order(*, reference: str, email: str, card: str, amount: str) -> Order:
    """Store an order and send its payment task after the transaction has committed."""
    with transaction.atomic():
        order = Order.objects.create(reference=reference, email=email, card=card, amount=amount)
        transaction.on_commit(lambda: request_payment(reference))
    return order


def request_payment(reference: str) -> str:
    """Send an order's payment task and return its id. Safe to repeat, for example after the broker was away."""
    task_id: str = charge.apply_async((reference,), task_id=f"charge-{reference}").id
    return task_id
