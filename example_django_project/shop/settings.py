"""Settings of the shop. Values that differ between machines come from the environment."""

import os
from pathlib import Path

import django
from kombu import Exchange, Queue

BASE_DIR = Path(__file__).resolve().parents[1]

# Only for an example on your machine: set SECRET_KEY if others can reach the shop.
SECRET_KEY = os.environ.get("SECRET_KEY", "example-only-never-use-this-key-anywhere-else")
DEBUG = os.environ.get("DEBUG", "1") == "1"
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "127.0.0.1,localhost").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "celery_rmq_delay.contrib.django",
    "orders",
    "catalogue",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES: dict[str, dict[str, object]]
if "POSTGRES_HOST" in os.environ:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": os.environ["POSTGRES_HOST"],
            "PORT": os.environ.get("POSTGRES_PORT", "5432"),
            "NAME": os.environ.get("POSTGRES_DB", "shop"),
            "USER": os.environ.get("POSTGRES_USER", "shop"),
            "PASSWORD": os.environ.get("POSTGRES_PASSWORD", "shop"),
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SQLITE_PATH", str(BASE_DIR / "shop.sqlite3")),
            # The worker's processes write at the same time: with WAL readers never wait, writers wait for each other.
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    }

PAYMENT_GATEWAY_URL = os.environ.get("PAYMENT_GATEWAY_URL", "http://127.0.0.1:8081")
SUPPLIER_FEED_URL = os.environ.get("SUPPLIER_FEED_URL", "http://127.0.0.1:8082")
_MAIL = {
    "host": os.environ.get("EMAIL_HOST", "127.0.0.1"),
    "port": int(os.environ.get("EMAIL_PORT", "2525")),
    "timeout": 2,
}
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"OPTIONS": _MAIL}}
else:
    EMAIL_HOST, EMAIL_PORT, EMAIL_TIMEOUT = _MAIL.values()
DEFAULT_FROM_EMAIL = "shop@example.org"

CELERY_BROKER_URL = os.environ.get("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//")
CELERY_RESULT_BACKEND = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
CELERY_RESULT_EXTENDED = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# An order is placed only when the broker has its payment task.
CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}

CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_QUEUES = [
    Queue(
        name,
        Exchange(name),
        routing_key=name,
        queue_arguments={"x-queue-type": os.environ.get("QUEUE_TYPE", "classic")},
    )
    for name in ("payments", "mail", "default")
]
CELERY_TASK_ROUTES = {
    "orders.tasks.charge": {"queue": "payments"},
    "orders.tasks.send_receipt": {"queue": "mail"},
}

# How long failed tasks wait in RabbitMQ. A task of `payments` is tried four times in six minutes; the delays differ by
# up to 20 %, so that a gateway that comes back does not receive all of them at once.
CELERY_RMQ_DELAY = {
    "tiers": ["10s", "1m", "10m", "1h"],
    "queues": {
        "payments": {"tiers": ["5s", "30s", "5m"], "jitter": 0.2},
    },
}

# The ladder of the task `catalogue.tasks.import_prices`.
IMPORT_TIERS = ["5m", "30m", "2h"]

# The collector writes the history files for the analytics here: a folder, or a URL such as s3://shop/history.
RMQ_DELAY = {"HISTORY_URL": os.environ.get("HISTORY_URL") or None}
