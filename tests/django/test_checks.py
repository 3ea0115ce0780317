"""System checks: each finds its problem, and a good project gets no messages."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.checks import Tags
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from celery_rmq_delay import RetryableTask
from celery_rmq_delay.contrib.django import checks as django_checks
from celery_rmq_delay.contrib.django.models import CollectorStatus, search
from tests.support import ROOT
from tests.support.apps import app_of, bare_app
from tests.support.django.databases import Database, using
from tests.support.django.records import ago

app: Any = None

PATH = "tests.django.test_checks.app"
DOCUMENTED = (ROOT / "docs/reference/checks.md").read_text()


def project(broker="amqp://", installed=True, backend=None, **settings):
    make = app_of if installed else bare_app
    return make({"tiers": ["10s", "1m"], **settings}, broker=broker, result_backend=backend)


@pytest.fixture(autouse=True)
def shop(monkeypatch):
    """A project without problems."""
    use(monkeypatch, project())
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"transaction_mode": "IMMEDIATE"})
    with override_settings(RMQ_DELAY={"CELERY_APP": PATH}):
        yield


def import_prices():
    """Do nothing: no worker runs here."""


def use(monkeypatch, made):
    monkeypatch.setattr(f"{__name__}.app", made)


def found(*, deploy=False):
    messages = checks.run_checks(tags=["rmq_delay"], include_deployment_checks=deploy)
    assert all(f"`{message.id}`" in DOCUMENTED for message in messages)
    assert all(message.hint or message.id == "rmq_delay.E001" for message in messages)
    return {str(message.id).removeprefix("rmq_delay."): message for message in messages}


def test_a_good_project_gets_no_messages():
    assert found() == {}


@pytest.mark.parametrize(
    "settings",
    [{"KEEP": 1}, {"KEEP_HISTORY_DAYS": 0}, "no", {"NOTIFY": {"mail": 1}}, {"NOTIFY": {"webhook": "example.org"}}],
)
def test_e001_settings_that_cannot_work_are_an_error_and_no_traceback(settings):
    with override_settings(RMQ_DELAY=settings):
        reported = found()
    assert list(reported) == ["E001"]
    assert "RMQ_DELAY" in reported["E001"].msg


@pytest.mark.parametrize("path", ["tests.nowhere.app", "tests.django.test_checks.PATH"])
def test_e002_a_celery_app_that_is_not_there(path):
    with override_settings(RMQ_DELAY={"CELERY_APP": path}):
        assert list(found()) == ["E002"]


@override_settings(USE_TZ=False)
def test_e003_times_without_a_zone():
    assert list(found()) == ["E003"]


@pytest.mark.parametrize(
    ("check", "options", "texts"),
    [
        ("E004", {"installed": False}, ["shop"]),
        ("E005", {"broker": "memory://"}, ["'memory'"]),
        ("E006", {"redact": {"hook": "shop.nowhere.redact"}}, ["shop.nowhere.redact"]),
        ("E006", {"redact": {"hook": "os.path.nothing"}}, ["os.path.nothing", "nothing"]),
        ("E006", {"redact": {"hook": f"{__name__}.PATH"}}, [f"{__name__}.PATH", "PATH"]),
        ("W002", {"events": False}, []),
    ],
)
def test_an_app_with_a_problem(monkeypatch, check, options, texts):
    use(monkeypatch, project(**options))
    reported = found()
    assert list(reported) == [check]
    assert all(text in reported[check].msg for text in texts)


def test_e006_a_hook_that_is_there(monkeypatch):
    use(monkeypatch, project(redact={"hook": "os.path.normpath"}))
    assert found() == {}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"tiers": ["10s", "8d"]}, "queues without a ladder of their own"),
        ({"queues": {"mail": {"tiers": ["4d", "4d"]}}}, "queue 'mail'"),
        ({"tiers": ["6d"], "jitter": 0.5}, "queues without a ladder of their own"),
    ],
)
def test_w001_a_ladder_longer_than_the_retention(monkeypatch, settings, name):
    use(monkeypatch, project(**settings))
    reported = found()
    assert list(reported) == ["W001"]
    assert "RMQ_DELAY['KEEP_RECOVERED_DAYS'] is 7 days" in reported["W001"].msg
    assert f"the ladder of {name} takes" in reported["W001"].msg
    with override_settings(RMQ_DELAY={"CELERY_APP": PATH, "KEEP_RECOVERED_DAYS": None}):
        assert found() == {}


def test_w001_includes_the_ladders_of_tasks(monkeypatch):
    made = project()
    made.task(base=RetryableTask, name="shop.import", tiers=["10d"], shared=False)(import_prices)
    use(monkeypatch, made)
    assert "task shop.import takes 10d" in found()["W001"].msg


def test_w003_mail_without_recipients():
    with override_settings(RMQ_DELAY={"CELERY_APP": PATH, "NOTIFY": {"mail": True}}):
        assert list(found()) == ["W003"]
        with override_settings(ADMINS=[("Ops", "ops@example.org")]):
            assert found() == {}


def database_checks():
    return [each.id for each in checks.run_checks(tags=[Tags.database], databases=["default"])]


def test_w004_several_collectors_on_sqlite(database):
    CollectorStatus.objects.create(name="gone", started_at=ago(), heartbeat_at=ago(hours=1))
    CollectorStatus.objects.create(name="one", started_at=ago(), heartbeat_at=timezone.now())
    assert database_checks() == []
    CollectorStatus.objects.create(name="two", started_at=ago(), heartbeat_at=timezone.now())
    assert database_checks() == (["rmq_delay.W004"] if database.vendor == "sqlite" else [])


def test_w004_before_the_first_migrate(tmp_path, django_db_blocker):
    empty = Database({"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "empty.sqlite3")}, {})
    with django_db_blocker.unblock(), using(empty):
        assert database_checks() == []


def test_w005_sqlite_whose_writers_do_not_wait(monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {})
    reported = found()
    assert list(reported) == ["W005"]


def test_w008_sqlite_without_full_text_search(monkeypatch):
    monkeypatch.setattr(search, "has_fts5", lambda _cursor: False)
    assert list(found()) == ["W008"]


def test_advice_is_shown_by_deployment_checks_only(monkeypatch):
    assert list(found(deploy=True)) == ["I001"]
    use(monkeypatch, project(backend="redis://"))
    assert found(deploy=True) == {}


@override_settings(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "celery_rmq_delay.contrib.django"]
)
def test_i002_no_pages_without_the_admin():
    assert list(found(deploy=True)) == ["I002", "I001"]


@pytest.mark.usefixtures("sqlite")  # Django 6 queries the features of the databases
def test_manage_py_check_runs_them(monkeypatch):
    use(monkeypatch, project(installed=False))
    with pytest.raises(SystemCheckError, match=r"rmq_delay\.E004"):
        call_command("check")


@pytest.mark.parametrize(
    "code",
    [
        "from django.core.management import call_command; import django; django.setup(); call_command('check')",
        "from shop.celery import app; app.loader.import_default_modules()",  # as a worker does, which runs the checks
    ],
    ids=["manage.py check", "worker"],
)
def test_the_shop_passes_in_manage_py_and_in_a_worker(code, tmp_path):
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'example_django_project'}",
        "SQLITE_PATH": str(tmp_path / "shop.sqlite3"),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert (done.returncode, "rmq_delay." in done.stderr) == (0, False), done.stderr[-2000:]


def test_every_check_is_documented_and_no_other():
    documented = re.findall(r"^\| `rmq_delay\.(\w+)`", DOCUMENTED, re.MULTILINE)
    source = Path(django_checks.__file__).read_text()
    assert sorted(documented) == sorted(re.findall(r'id="rmq_delay\.(\w+)"', source))
