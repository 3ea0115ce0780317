"""The Celery app. One line makes failed tasks wait in RabbitMQ."""

import os

import celery_rmq_delay
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
celery_rmq_delay.install(app)
app.autodiscover_tasks()
