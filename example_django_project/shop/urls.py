"""The shop's pages."""

from django.contrib import admin
from django.urls import path

from orders import views

urlpatterns = [
    path("", views.index, name="index"),
    path("admin/", admin.site.urls),
]
