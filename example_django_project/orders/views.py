"""The page with the last orders and a button that places more."""

import secrets

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from .customers import customers
from .models import Order
from .services import place_order


def index(request: HttpRequest) -> HttpResponse:
    """Show the last orders; place ten more on POST."""
    if request.method == "POST":
        for customer in customers(10, run=secrets.token_hex(3)):
            place_order(**customer)
        return redirect("index")
    totals = Order.objects.order_by("status").values_list("status").annotate(Count("pk"))
    return render(request, "orders/index.html", {"orders": Order.objects.all()[:50], "totals": list(totals)})
