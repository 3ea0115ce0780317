"""Projects with several databases: the pages work, or a check reports that they cannot."""

from contextlib import contextmanager

import pytest
from django.core import checks
from django.core.management import call_command
from django.db import Error, connections
from django.test import override_settings

from tests.support.django import people
from tests.support.django.records import group


class Router:
    """Puts the tables of ``apps`` into the database ``other``."""

    def __init__(self, apps):
        self._apps = apps

    def db_for_read(self, model, **_):
        return "other" if model._meta.app_label in self._apps else "default"

    db_for_write = db_for_read


@contextmanager
def two_databases(folder):
    """Two databases with all tables, instead of the default one."""
    settings, connection = connections.settings, connections["default"]
    sqlite = "django.db.backends.sqlite3"
    connections.settings = connections.configure_settings(
        {
            alias: {"ENGINE": sqlite, "NAME": str(folder / alias), "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
            for alias in ("default", "other")
        }
    )
    del connections["default"]
    try:
        for alias in ("default", "other"):
            call_command("migrate", database=alias, verbosity=0)
        yield
    finally:
        for alias in ("default", "other"):
            connections[alias].close()
        del connections["other"]
        connections.settings = settings
        connections["default"] = connection


@override_settings(DATABASE_ROUTERS=[Router(["contenttypes"])])
def test_e008_is_reported_for_content_types_which_have_other_keys_in_another_database():
    assert "rmq_delay.E008" in {each.id for each in checks.run_checks(tags=["rmq_delay"])}


@pytest.mark.parametrize(
    ("apps", "works"),
    [
        pytest.param([], True, marks=pytest.mark.slow),
        pytest.param(["rmq_delay", "auth", "admin", "contenttypes", "sessions"], True, marks=pytest.mark.slow),
        (["rmq_delay", "auth", "admin", "contenttypes"], True),
        pytest.param(["sessions"], True, marks=pytest.mark.slow),
        pytest.param(["rmq_delay"], False, marks=pytest.mark.slow),
        pytest.param(["auth"], False, marks=pytest.mark.slow),
        pytest.param(["admin"], False, marks=pytest.mark.slow),
        (["rmq_delay", "auth"], False),
        (["rmq_delay", "admin", "contenttypes"], False),
    ],
    ids=str,
)
@pytest.mark.usefixtures("shop")
def test_e008_is_reported_exactly_where_a_page_cannot_save_an_act(apps, works, tmp_path, django_db_blocker):
    with django_db_blocker.unblock(), two_databases(tmp_path), override_settings(DATABASE_ROUTERS=[Router(apps)]):
        reported = [each.id for each in checks.run_checks(tags=["rmq_delay"]) if each.id == "rmq_delay.E008"]
        assert reported == ([] if works else ["rmq_delay.E008"])
        try:
            page = f"/admin/rmq_delay/failuregroup/{group().pk}/note/"
            saved = people.superuser().post(page, {"note": "Ask the bank"}).status_code == 302
        except (Error, ValueError):
            saved = False
        assert saved == works
