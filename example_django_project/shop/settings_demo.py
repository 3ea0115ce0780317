"""The settings of the shop for the demo: the same tiers, with seconds instead of minutes."""

from .settings import *  # noqa: F403 - Django's usual way to vary settings

CELERY_RMQ_DELAY = {
    "tiers": ["1s", "2s", "4s", "8s"],
    "queues": {
        "payments": {"tiers": ["1s", "3s", "9s"], "jitter": 0.2},
    },
}
IMPORT_TIERS = ["3s", "6s"]
