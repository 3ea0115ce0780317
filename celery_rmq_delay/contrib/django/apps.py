"""The Django app's configuration."""

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate


class RmqDelayConfig(AppConfig):
    """``celery_rmq_delay.contrib.django`` in INSTALLED_APPS; its label is ``rmq_delay``."""

    name = "celery_rmq_delay.contrib.django"
    label = "rmq_delay"
    verbose_name = "Retries in RabbitMQ"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and the repair of the search after a migration."""
        from . import checks  # noqa: F401 - it needs the models

        post_migrate.connect(_repair_search, sender=self)


def _repair_search(using: str, **_more: Any) -> None:
    from .models import search

    search.repair(connections[using])
