"""The log of the collector's command, with and without logging of the project."""

import os
import re
import signal

import pytest

from tests.support import ROOT
from tests.support.brokers.connections import close_connections
from tests.support.django.collecting import ended
from tests.support.django.reported import event, message
from tests.support.waiting import SECONDS

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) (.+)")


@pytest.mark.slow
def test_without_logging_of_the_project_each_line_has_a_time_and_a_level(rig, database):
    rig.send(event("a"), event("b"), b"no event", b"none\n", message("x"))
    with rig.command("--once") as process:
        code, output = ended(process)
    assert code == 0, output
    lines = [LINE.fullmatch(line) for line in output.splitlines()]
    assert None not in lines, output
    found = [line.groups() for line in lines if line is not None]
    assert found[:2] == [
        (
            "INFO",
            f"Collecting from rmq_delay.events, rmq_delay.exhausted into the database default ({database.vendor})",
        ),
        ("INFO", "Connected to the broker"),
    ]
    (unreadable,) = [text for level, text in found if level == "WARNING"]
    assert unreadable == "Unreadable messages of rmq_delay.events were kept: 2. The admin shows their errors"
    assert found[-1][1].startswith("Ended: 4 events and 1 exhausted messages collected, 2 of them unreadable; lag ")
    assert found[-1][1].endswith(" ms, 0 waiting")


@pytest.mark.slow
def test_logging_of_the_project_is_used_as_it_is(rig, tmp_path):
    (tmp_path / "own_settings.py").write_text(
        """
from shop.settings import *

LOGGING = {
    "version": 1, "disable_existing_loggers": False,
    "formatters": {"own": {"format": "own %(levelname)s %(message)s"}},
    "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own"}},
    "root": {"handlers": ["own"], "level": "WARNING"},
}
"""
    )
    rig.send(b"no event")
    path = os.pathsep.join(map(str, (ROOT, tmp_path)))
    with rig.command("--once", DJANGO_SETTINGS_MODULE="own_settings", PYTHONPATH=path) as process:
        code, output = ended(process)
    assert code == 0, output
    (line,) = output.splitlines()
    assert line.startswith(
        "own WARNING Unreadable messages of rmq_delay.events were kept: 1. The admin shows their errors"
    )


def test_a_lost_connection_and_the_next_one_are_logged(rig, rmq_broker):
    with rig.command() as process:
        assert process.stdout is not None
        lines = list(until("INFO Connected to the broker", process.stdout))
        close_connections(rmq_broker)
        lines += until("INFO Connected to the broker", process.stdout)
        process.send_signal(signal.SIGTERM)
        lines += process.stdout
        assert process.wait(SECONDS) == 0, lines
    assert all(LINE.fullmatch(line.strip()) for line in lines), lines
    assert any("WARNING The connection to the broker failed: trying again in" in line for line in lines)
    assert "INFO Ended: 0 events" in lines[-1]


def until(end, lines):
    """Yield lines up to the first one that ends so."""
    for line in lines:
        yield line
        if line.strip().endswith(end):
            return
    raise AssertionError(f"no line ends with {end!r}")
