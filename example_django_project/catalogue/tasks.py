"""Imports of price lists."""

import csv

import httpx
from celery import shared_task
from celery_rmq_delay import RetryableTask
from django.conf import settings

from .models import Product


class FeedUnavailable(Exception):  # noqa: N818 - named after what happened
    """A supplier's server did not return its price list."""


# Imports have their own ladder, different from that of the queue: suppliers are away longer, and no customer waits.
@shared_task(base=RetryableTask, tiers=settings.IMPORT_TIERS)
def import_prices(supplier):
    """Fetch a supplier's price list and store it; return the number of articles."""
    try:
        response = httpx.get(f"{settings.SUPPLIER_FEED_URL}/{supplier}.csv", timeout=2)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise FeedUnavailable(f"{type(error).__name__}: {error}") from error
    rows = csv.DictReader(response.text.splitlines())
    products = [Product(supplier=supplier, sku=row["sku"], price=row["price"]) for row in rows]
    Product.objects.bulk_create(
        products, update_conflicts=True, unique_fields=["supplier", "sku"], update_fields=["price"]
    )
    return len(products)
