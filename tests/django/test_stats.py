"""The command `rmq_delay_stats`: as text and as JSON."""

import json
import re

import pytest
from django.core.management import load_command_class
from django.core.management.base import BaseCommand, CommandError

from celery_rmq_delay.contrib.django.models import CollectorStatus, TaskState
from tests.support import ROOT
from tests.support.django.commands import manage
from tests.support.django.records import ago, group, record
from tests.support.django.shop import make, of

pytestmark = pytest.mark.usefixtures("database", "shop")


def test_the_counts_for_people():
    failed, muted = group(), group(exception_type="shop.Refused", message="no", muted=True)
    record(TaskState.PARKED, tier=1, due_at=ago(minutes=5))
    record(TaskState.PARKED, due_at=ago(minutes=-5))
    for each in (failed, failed, muted):
        record(TaskState.EXHAUSTED, failure_group=each, name="payments.refund")
    CollectorStatus.objects.create(name="c1", started_at=ago(), heartbeat_at=ago(), lag_ms=1500, waiting=7)
    text, broker = manage("stats").split("Broker: ")
    assert text.splitlines() == [
        "States",
        "         3  EXHAUSTED",
        "         2  PARKED",
        "Parked",
        *sorted(["         1  payments tier 1, 1 due, 1 overdue", "         1  payments exact, 0 due, 0 overdue"],
                key=text.find),
        "Exhausted",
        "         3  payments",
        "Tasks",
        "         2  payments.charge: 2 PARKED",
        "         3  payments.refund: 3 EXHAUSTED",
        "Failure groups with most exhausted tasks",
        "         2  requests.Timeout: no answer in <n> s",
        "         1  shop.Refused: no (muted)",
        "Collectors",
        "         7  waiting for c1, lag 1.5 s",
    ]  # fmt: skip
    assert "refused" in broker


def test_the_counts_as_json():
    record(TaskState.EXHAUSTED, exhausted_at=ago(days=1))
    found = json.loads(manage("stats", json=True))
    assert found["states"] == {"EXHAUSTED": 1}
    assert found["tasks"] == {"payments.charge": {"EXHAUSTED": 1}}
    assert found["exhausted"][0]["count"] == 1
    assert (found["parked"], found["groups"], found["collectors"]) == ([], [], [])
    assert found["broker"]["ok"] is False
    assert found["broker"]["parked"] is None


def test_the_broker_is_counted_where_it_is_there(rmq_broker):
    with of(make(rmq_broker.url, prefix="stats", queue="stats")):
        found = json.loads(manage("stats", json=True))["broker"]
    assert (found["ok"], found["parked"], found["exact"]) == (True, 0, 0)
    assert {each["queue"] for each in found["tiers"]} == {"stats"}


NO_SECONDS = ("-1", "nan", "inf", "soon")


def test_the_collector_refuses_numbers_that_make_no_sense():
    parser = load_command_class("celery_rmq_delay.contrib.django", "rmq_delay_collect").create_parser("", "")
    seconds, batch = "a number of seconds, 0 or more", "a whole number from 1 to 20000"
    wrong = [(option, value, seconds) for option in ("--file-seconds", "--max-seconds") for value in NO_SECONDS]
    for option, value, wanted in [*wrong, *(("--batch", value, batch) for value in ("0", "x", "20001"))]:
        with pytest.raises(CommandError, match=f"argument {option}: found '{value}'; write {wanted}$"):
            parser.parse_args([option, value])
    assert parser.parse_args(["--file-seconds", "0", "--max-seconds", "0.5", "--batch", "1"]).max_seconds == 0.5


def test_every_option_of_the_commands_is_documented_and_no_other():
    page = (ROOT / "docs/reference/django.md").read_text()
    common = {option for each in BaseCommand().create_parser("", "")._actions for option in each.option_strings}
    for command in ("collect", "export", "insights", "monitoring", "operate", "prune", "stats"):
        section = page.split(f"## Options of `rmq_delay_{command}`")[1].split("\n## ")[0]
        parser = load_command_class("celery_rmq_delay.contrib.django", f"rmq_delay_{command}").create_parser("", "")
        options = {option for each in parser._actions for option in each.option_strings}
        assert set(re.findall(r"`(--[\w-]+)`", section)) == options - common, command
