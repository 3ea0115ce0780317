"""Orders in Django's admin."""

from django.contrib import admin

from .models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """The list of orders."""

    list_display = ("reference", "status", "amount", "payment_retries", "placed_at", "paid_at", "receipt_sent_at")
    list_filter = ("status", "payment_retries")
    search_fields = ("reference", "email")
