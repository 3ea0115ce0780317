"""Products in Django's admin."""

from django.contrib import admin

from .models import Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    """The list of products."""

    list_display = ("supplier", "sku", "price")
    list_filter = ("supplier",)
