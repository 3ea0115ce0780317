"""The tasks of an order. They are idempotent: each may run more than once."""

from celery import shared_task
from celery_rmq_delay import RetryableTask
from django.core.mail import EmailMessage
from django.db.models import Avg
from django.utils import timezone

from . import gateway
from .models import Order


@shared_task(base=RetryableTask, bind=True, give_up_on=(gateway.InvalidCard,))
def charge(self, reference):
    """Charge the card of an order. Retried while the gateway is down; a declined card is not tried again."""
    order = Order.objects.get(reference=reference)
    if order.status != Order.Status.PAID:
        try:
            charge_id = gateway.charge(reference=reference, card=order.card, amount=str(order.amount))
        except gateway.InvalidCard:
            Order.objects.filter(pk=order.pk).update(status=Order.Status.DECLINED)
            raise
        Order.objects.filter(pk=order.pk).update(
            status=Order.Status.PAID,
            charge_id=charge_id,
            paid_at=timezone.now(),
            payment_retries=self.request.retries,
        )
    # Also if an earlier run was interrupted here; `send_receipt` checks whether the receipt was sent.
    send_receipt.apply_async((reference,), task_id=f"receipt-{reference}")


@shared_task(base=RetryableTask)
def send_receipt(reference):
    """Mail the receipt of a paid order."""
    order = Order.objects.get(reference=reference)
    if order.receipt_sent_at is not None:
        return
    EmailMessage(
        subject=f"Your order {reference}",
        body=f"Thank you. {order.amount} EUR were charged to your card.\n",
        to=[order.email],
        headers={"Message-ID": f"<receipt-{reference}@shop.example.org>"},
    ).send()
    Order.objects.filter(pk=order.pk).update(receipt_sent_at=timezone.now())


@shared_task(base=RetryableTask)
def sales_report(day):
    """Report the sales of a day. It has a bug: it fails on each attempt and ends exhausted."""
    sales = Order.objects.filter(paid_at__date=day)
    average = sales.aggregate(average=Avg("amount"))["amount__avg"]
    return {"day": day, "orders": sales.count(), "average": round(average, 2)}
