"""Two admin sites: Django's own, and one of a project that has several."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from celery_rmq_delay.contrib.django.admin import register

operations_desk = admin.AdminSite(name="desk")
register(operations_desk)

urlpatterns = [path("admin/", admin.site.urls), path("desk/", operations_desk.urls)]

#: The base URLs of their pages.
ROOTS = ("/admin/", "/desk/")
