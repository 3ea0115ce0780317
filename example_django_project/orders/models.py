"""The order model. The status makes the payment idempotent."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    class Status(models.TextChoices):
        """The progress of an order."""

        PENDING = "pending"
        PAID = "paid"
        DECLINED = "declined"

    reference = models.CharField(max_length=40, unique=True)
    email = models.EmailField()
    card = models.CharField(max_length=40, help_text="The gateway's token of the card, never its number.")
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING, db_index=True)
    charge_id = models.CharField(max_length=40, blank=True)
    payment_retries = models.PositiveSmallIntegerField(null=True, blank=True)
    placed_at = models.DateTimeField(auto_now_add=True)
    paid_at = models.DateTimeField(null=True, blank=True)
    receipt_sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        """Newest first."""

        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.reference
