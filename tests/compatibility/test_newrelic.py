"""New Relic: transactions and errors of its Celery instrumentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.compatibility.plays import (
    KINDS,
    Attempt,
    Play,
    Product,
    assert_one_trace_for_each_call,
    statuses,
)

pytestmark = pytest.mark.slow  # three workers; test_sentry.py and test_opentelemetry.py run the same calls

pytest.importorskip("newrelic")

#: Writes what the agent sends in its developer mode, which has no connection.
BEFORE = """
import json, os
from newrelic.common import agent_http

send = agent_http.DeveloperModeClient.send_request

def to_file(self, method="POST", path="", params=None, headers=None, payload=None):
    with open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "a") as file:
        line = {"method": (params or {}).get("method"), "payload": json.loads(payload or "null")}
        file.write(json.dumps(line) + "\\n")
    return send(self, method=method, path=path, params=params, headers=headers, payload=payload)

agent_http.DeveloperModeClient.send_request = to_file
"""
AFTER = """
import newrelic.agent

def publishing(name):
    return newrelic.agent.BackgroundTask(newrelic.agent.register_application(timeout=30), "checkout of " + name)
"""
NEWRELIC = Product(
    "with_newrelic.py",
    files=("newrelic.ini",),
    before=BEFORE,
    after=AFTER,
    environ=(
        ("NEW_RELIC_CONFIG_FILE", "{folder}/newrelic.ini"),
        ("NEW_RELIC_DEVELOPER_MODE", "true"),
        ("NEW_RELIC_LICENSE_KEY", "0" * 40),
        ("NEW_RELIC_APP_NAME", "shop"),
        ("NEW_RELIC_STARTUP_TIMEOUT", "30"),
    ),
)


FINAL = [("fails", "Boom"), ("gives_up", "Hopeless"), ("last", "Hopeless")]


def events(play: Play, method: str) -> list[dict[str, Any]]:
    """The attributes of all events that a method of the collector got, oldest first."""
    found = [event[0] for each in play.lines() if each["method"] == method for event in each["payload"][2]]
    return sorted(found, key=lambda event: event["timestamp"])


def name_of(event: dict[str, Any], key: str) -> str:
    return str(event[key].rpartition("/")[2])


def errors(play: Play) -> list[tuple[str, str]]:
    """Task and class of each error."""
    found = events(play, "error_event_data")
    return [(name_of(each, "transactionName"), each["error.class"].rpartition(":")[2]) for each in found]


def attempts(play: Play) -> list[Attempt]:
    failed = {each["guid"] for each in events(play, "error_event_data")}
    return [
        Attempt(
            name_of(each, "name"), "error" if each["guid"] in failed else "ok", each["traceId"], each.get("parentId")
        )
        for each in events(play, "analytic_event_data")
        if each["name"].startswith("OtherTransaction/Celery/")
    ]


def has_last(play: Play) -> bool:
    return any(each.task == "last" for each in attempts(play))


@pytest.fixture(scope="module")
def plays(make_plays: Callable[..., dict[str, Play]]) -> dict[str, Play]:
    return make_plays(NEWRELIC, has_last)


def test_each_attempt_has_the_status_that_it_has_with_stock_celery(plays: dict[str, Play]) -> None:
    stock, ours = (statuses(attempts(plays[kind])) for kind in KINDS)
    assert ours == stock
    assert [status for task, status in ours if task == "fails"] == ["ok", "ok", "error"]


def test_all_attempts_of_a_call_are_in_the_trace_of_its_caller(plays: dict[str, Play]) -> None:
    assert_one_trace_for_each_call(attempts(plays["stock"]))
    assert_one_trace_for_each_call(attempts(plays["retryable"]))


def test_an_ignored_retry_is_no_error_and_a_final_failure_is_one(plays: dict[str, Play]) -> None:
    assert {kind: sorted(errors(plays[kind])) for kind in KINDS} == dict.fromkeys(KINDS, sorted(FINAL))


def test_without_that_setting_each_retry_is_an_error_as_with_stock_celery(
    make_plays: Callable[..., dict[str, Play]],
) -> None:
    environ = tuple(each for each in NEWRELIC.environ if each[0] != "NEW_RELIC_CONFIG_FILE")
    found = make_plays(replace(NEWRELIC, environ=environ), has_last)
    retries = [(task, "Retry") for task in ("recovers", "fails", "fails", "asks", "changes", "calls")]
    expected = sorted([*retries, *FINAL])
    assert {kind: sorted(errors(found[kind])) for kind in KINDS} == dict.fromkeys(KINDS, expected)
