"""Makes every task of Celery's own integration suite a retryable one: a plugin for `scripts/test_celery.py`."""

from typing import Any

import celery.contrib.testing.app
from celery import Celery

import celery_rmq_delay

#: As many tiers as Celery makes retries.
SETTINGS = {"tiers": ["1s", "2s", "3s"], "exact_unit": "100ms"}


class SuiteTask(celery_rmq_delay.RetryableTask):
    autoretry_for = ()


class SuiteApp(Celery):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"task_cls": SuiteTask, **options})
        self.add_defaults({"rmq_delay": SETTINGS})
        celery_rmq_delay.install(self)


celery.contrib.testing.app.Celery = SuiteApp
