"""The Django app's configuration."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RmqDelayConfig(AppConfig):
    """``celery_rmq_delay.contrib.django`` in INSTALLED_APPS; its label is ``rmq_delay``."""

    name = "celery_rmq_delay.contrib.django"
    label = "rmq_delay"
    verbose_name = _("Retries in RabbitMQ")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from . import checks  # noqa: F401 - it needs the models
