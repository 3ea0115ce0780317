"""Django settings of the shop beside django-celery-results and django-celery-beat."""

import os
from pathlib import Path

SECRET_KEY = "tests"
INSTALLED_APPS = ["django_celery_results", "django_celery_beat"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(os.environ["SHOP_FOLDER"], "shop.sqlite3"),
        "OPTIONS": {"timeout": 60},
    }
}
USE_TZ = True
TIME_ZONE = "UTC"
