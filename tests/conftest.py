"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import settings

from tests import django_settings as test_settings

pytest_plugins = ["tests.reports"]

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
#: For `make fuzz`: other examples each time, and many of them.
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=3_000)

#: Those whose tests take longest come first.
FOLDERS = ("chaos", "acceptance", "spark", "browser", "integration", "packaging", "django", "unit")
MARKED = {"acceptance", "browser", "integration", "spark"}
#: Files whose tests load the machine. Of several processes only one runs them, and `make test-brokers` few of them.
HEAVY = {
    "test_chaos.py",
    "test_chaos_cluster.py",
    "test_exact_change.py",
    "test_exact_cluster.py",
    "test_exact_crashes.py",
    "test_exact_table.py",
    "test_migrate_killed.py",
    "test_parked.py",
    "test_partition.py",
}
#: Integration tests whose subject no broker's version changes, or of which others show enough: `make test` runs them,
#: `make test-brokers` only those that say so.
ONE_BROKER = {
    "test_adopt.py",
    "test_broker_ladder.py",
    "test_capacity.py",
    "test_cli.py",
    "test_collector.py",
    "test_collector_history.py",
    "test_collector_hostile.py",
    "test_collector_killed.py",
    "test_collector_metrics.py",
    "test_kit_docs.py",
    "test_migrate.py",
    "test_migrate_matrix.py",
    "test_operations_trouble.py",
    "test_private_broker.py",
    "test_private_postgres.py",
    "test_quickstart.py",
}


def pytest_configure(config: pytest.Config) -> None:
    """Give Django its settings, for the tests that pytest-django marks.

    Not by DJANGO_SETTINGS_MODULE: with that, Celery takes every app of every test for one of a Django project.
    """
    os.environ.pop("PYTHONUNBUFFERED", None)  # what a test starts has to flush what it prints by itself
    django_settings.configure(**{name: value for name, value in vars(test_settings).items() if name.isupper()})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder and file, so that ``-m integration`` needs no mark in each file."""
    for item in items:
        if (folder := _folder(item)) in MARKED:
            item.add_marker(folder)
        if item.path.name in HEAVY:
            item.add_marker("heavy")
        if item.path.name in ONE_BROKER:
            item.add_marker("one_broker")
    if hasattr(config, "workerinput"):  # what takes longest is not to be left at the end, with the other processes idle
        items.sort(key=lambda item: (item.path.name not in HEAVY, FOLDERS.index(_folder(item))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process of pytest-xdist whole files, all heavy ones to the same, and those of Spark, too.

    The heavy ones would load the machine together; those of Spark have a session that only one process needs to start.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # comes without types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            folder, _, name = file.rpartition("/")
            return "heavy" if name in HEAVY else "spark" if folder == "tests/spark" else file

    return Scheduling(config, log)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]
