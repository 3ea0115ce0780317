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

pytest.importorskip("newrelic")

#: Writes what the agent sends in its developer mode, which has no connection.
BEFORE = """
import json, os
from newrelic.common import agent_http

send = agent_http.DeveloperModeClient.send_request

def to_file(self, method="POST", path="", params=None, headers=None, payload=None):
    with open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "a") as file:
        file.write(json.dumps({"method": (params or {}).get("method"), "payload": json.loads(payload or "null")}) + "\\n")
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
    BEFORE,
    AFTER,
    environ=(
        ("NEW_RELIC_DEVELOPER_MODE", "true"),
        ("NEW_RELIC_LICENSE_KEY", "0" * 40),
        ("NEW_RELIC_APP_NAME", "shop"),
        ("NEW_RELIC_STARTUP_TIMEOUT", "30"),
    ),
)


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


@pytest.fixture(scope="module")
def plays(make_plays: Callable[..., dict[str, Play]]) -> dict[str, Play]:
    return make_plays(NEWRELIC, lambda play: any(each.task == "last" for each in attempts(play)))


def test_each_attempt_has_the_status_that_it_has_with_stock_celery(plays: dict[str, Play]) -> None:
    stock, ours = (statuses(attempts(plays[kind])) for kind in KINDS)
    assert ours == stock
    assert [status for task, status in ours if task == "fails"] == ["error", "error", "error"]


def test_all_attempts_of_a_call_are_in_the_trace_of_its_caller(plays: dict[str, Play]) -> None:
    assert_one_trace_for_each_call(attempts(plays["stock"]))
    assert_one_trace_for_each_call(attempts(plays["retryable"]))


def test_a_retry_is_an_error_as_with_stock_celery(plays: dict[str, Play]) -> None:
    """So New Relic advises to ignore the class ``celery.exceptions:Retry``."""
    retries = [(task, "Retry") for task in ("recovers", "fails", "fails", "asks", "changes", "calls")]
    final = [("fails", "Boom"), ("gives_up", "Hopeless"), ("last", "Hopeless")]
    assert {kind: sorted(errors(plays[kind])) for kind in KINDS} == dict.fromkeys(KINDS, sorted([*retries, *final]))


@pytest.mark.slow
def test_an_ignored_retry_is_no_error(make_plays: Callable[..., dict[str, Play]]) -> None:
    ignoring = replace(
        NEWRELIC, environ=(*NEWRELIC.environ, ("NEW_RELIC_ERROR_COLLECTOR_IGNORE_CLASSES", "celery.exceptions:Retry"))
    )
    found = make_plays(ignoring, lambda play: any(each.task == "last" for each in attempts(play)))
    final = [("fails", "Boom"), ("gives_up", "Hopeless"), ("last", "Hopeless")]
    assert {kind: sorted(errors(found[kind])) for kind in KINDS} == dict.fromkeys(KINDS, sorted(final))
