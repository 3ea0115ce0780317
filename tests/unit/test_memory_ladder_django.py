"""The in-memory ladder in a Django project's own test runner: tasks run in the test's transaction."""

import os
import subprocess
import sys

import pytest

SETTINGS = """
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_BROKER_URL = "amqp://broker.invalid//"
CELERY_RMQ_DELAY = {"tiers": ["10s", "1m"]}
"""

APP = """
import celery_rmq_delay
from celery import Celery, shared_task
from celery_rmq_delay import RetryableTask

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
celery_rmq_delay.install(app)


@shared_task(base=RetryableTask, bind=True)
def register(self, name):
    from django.contrib.auth.models import User

    User.objects.create(username=f"{name}{self.request.retries}")
    if not self.request.retries:
        raise ConnectionError("once")
"""

TEST = """
from django.contrib.auth.models import User
from django.test import TestCase

import celery_app
from celery_rmq_delay.testing import MemoryLadder, recovered


class RegisterTest(TestCase):
    def check(self):
        User.objects.create(username="before")
        with MemoryLadder(celery_app.app) as ladder:
            recovered(ladder.run(celery_app.register.s("user")), after=1)
        self.assertEqual(User.objects.count(), 3)

    def test_rows_of_test_and_task_are_in_one_transaction(self):
        self.check()

    def test_which_is_rolled_back(self):
        self.check()
"""


def test_tasks_run_inside_of_the_transaction_of_a_django_test(tmp_path):
    pytest.importorskip("django")
    for name, text in {"shop_settings.py": SETTINGS, "celery_app.py": APP, "test_shop.py": TEST}.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "django", "test"],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "shop_settings"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr
