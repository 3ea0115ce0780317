"""The Django project. Importing it creates the Celery app, as Celery's documentation recommends."""

from .celery import app as celery_app

__all__ = ["celery_app"]
