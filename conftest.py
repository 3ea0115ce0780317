"""Shared configuration of all tests: of the package, the chaos program and the benchmarks."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import HealthCheck, settings

from celery_rmq_delay.testing import ServerNotFoundError
from tests.support import ROOT, environment
from tests.support.brokers import trees
from tests.support.django import settings as test_settings
from tests.support.waiting import PAUSES

pytest_plugins = [
    "tests.support.leaks",
    "tests.support.reports",
    "tests.support.results",
    "tests.support.servers.fixtures",
    "tests.support.brokers.fixtures",
    "tests.support.django.fixtures",
]

#: Examples of each property: fixed ones, more of them in `make test-all`; random ones in `make fuzz`.
for name, number in {"quick": 20, "full": 100, "fuzz": 3_000}.items():
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
    settings.register_profile(name, patient, derandomize=name != "fuzz", max_examples=number)
settings.load_profile("quick")

#: Seconds that a slow test may take on a busy machine; ``timeout`` in pyproject.toml applies to the others.
SLOW_TIMEOUT = 1_800
#: The slowest first.
FOLDERS = (
    "tests/spark",
    "chaos/tests",
    "tests/acceptance",
    "tests/compatibility",
    "tests/browser",
    "tests/integration",
    "tests/packaging",
    "benchmarks/tests",
    "tests/django",
    "tests/unit",
)
#: Folders of slow tests: they run other products, what is published, or programs beside the package.
SLOW = ("tests/compatibility", "tests/packaging", "chaos/tests", "benchmarks/tests")
#: Folders whose tests have a marker of the same name.
MARKED = {"acceptance", "browser", "compatibility", "integration", "spark"}
#: Files whose tests all run in one process, since they share servers that are slow to start or expensive to run: a Java
#: machine, a shop with its browser, a broker with its management API.
TOGETHER = {
    "spark": ("tests/spark/",),
    "browser": ("tests/browser/",),
    "managed": (
        "tests/acceptance/test_adopt.py",
        "tests/acceptance/test_walk_migrate.py",
        "tests/acceptance/test_walk_tests.py",
        "tests/compatibility/test_keda.py",
        "tests/compatibility/test_quorum_only.py",
        "tests/integration/test_adopt.py",
        "tests/integration/test_command_table.py",
        "tests/integration/test_doctor.py",
        "tests/integration/test_kit_docs.py",
        "tests/integration/test_management.py",
        "tests/integration/test_migrate_managed.py",
        "tests/integration/test_private_broker.py",
        "tests/integration/test_status_managed.py",
        "tests/integration/test_uninstall.py",
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that finds tests which depend on timing, and the ceiling that keeps the quick suite quick."""
    parser.addini("quick_tests", "the most tests of `make test`: with more of them, decide which become slow")
    parser.addoption(
        "--pauses",
        type=float,
        default=0,
        metavar="SECONDS",
        help="pause tests for up to SECONDS after one of three waits, as a busy machine does: all should still pass",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the RabbitMQ of ``--rabbitmq VERSION``; give Django its settings, for the tests that pytest-django marks.

    Not by DJANGO_SETTINGS_MODULE: with it, Celery treats every app of every test as part of a Django project.
    """
    environment.clean(os.environ)
    environment.take_signals()
    if config.option.rabbitmq in trees.SUITES:
        try:
            found = trees.choose(config.option.rabbitmq)
        except ServerNotFoundError as error:
            raise pytest.UsageError(str(error)) from None
        config.option.rabbitmq = str(found.root or found.server)
    if not hasattr(config, "workerinput"):  # the other processes of a run inherit its folder
        own = ExitStack()
        own.enter_context(environment.own_temporary_files())
        config.add_cleanup(own.close)
    try:
        environment.have_files()
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from None
    PAUSES.seconds = config.getoption("--pauses")
    django_settings.configure(**{name: value for name, value in vars(test_settings).items() if name.isupper()})


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder, so that ``-m integration`` needs no mark in each file; give slow ones their time."""
    for item in items:
        folder = item.path.relative_to(ROOT)
        for name in MARKED & {*folder.parts}:
            item.add_marker(name)
        if any(folder.is_relative_to(name) for name in SLOW):
            item.add_marker("slow")
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
    if hasattr(config, "workerinput"):  # slow tests first, so that no process idles at the end
        items.sort(key=_place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose the pauses of ``--pauses``."""
    PAUSES.begin(item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process of pytest-xdist whole files, and those of `TOGETHER` to one."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # comes without types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((name for name, starts in TOGETHER.items() if file.startswith(starts)), file)

    return Scheduling(config, log)


def _place(item: pytest.Item) -> int:
    """Return the place of an item's folder in the order; folders inside of it go with it."""
    folder = item.path.relative_to(ROOT)
    return next((place for place, name in enumerate(FOLDERS) if folder.is_relative_to(name)), len(FOLDERS))
