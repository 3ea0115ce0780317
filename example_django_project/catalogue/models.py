"""What the shop sells."""

from django.db import models


class Product(models.Model):
    """One article of one supplier."""

    supplier = models.CharField(max_length=40)
    sku = models.CharField(max_length=40)
    price = models.DecimalField(max_digits=10, decimal_places=2)

    class Meta:
        """A supplier lists an article once."""

        constraints = (models.UniqueConstraint(fields=("supplier", "sku"), name="one_price_per_article"),)

    def __str__(self) -> str:
        return f"{self.supplier} {self.sku}"
