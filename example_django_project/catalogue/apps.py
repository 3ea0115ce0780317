"""The app's configuration."""

from django.apps import AppConfig


class CatalogueConfig(AppConfig):
    """The catalogue."""

    name = "catalogue"
