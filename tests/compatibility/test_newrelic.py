"""New Relic: transactions and errors of its Celery instrumentation."""

from dataclasses import replace

import pytest

from tests.support.compatibility.plays import KINDS, Attempt, Product, assert_same, has_last

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
PRODUCT = Product(
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


def events(play, method):
    """The attributes of all events that a method of the collector got, oldest first."""
    found = [event[0] for each in play.lines() if each["method"] == method for event in each["payload"][2]]
    return sorted(found, key=lambda event: event["timestamp"])


def name_of(event, key):
    return str(event[key].rpartition("/")[2])


def errors(play):
    found = events(play, "error_event_data")
    return [(name_of(each, "transactionName"), each["error.class"].rpartition(":")[2]) for each in found]


def attempts(play):
    failed = {each["guid"] for each in events(play, "error_event_data")}
    return [
        Attempt(
            name_of(each, "name"), "error" if each["guid"] in failed else "ok", each["traceId"], each.get("parentId")
        )
        for each in events(play, "analytic_event_data")
        if each["name"].startswith("OtherTransaction/Celery/")
    ]


def test_attempts_have_the_status_and_the_trace_that_they_have_with_stock_celery(plays):
    assert_same(*(attempts(plays[kind]) for kind in KINDS), ["ok", "ok", "error"])


def test_an_ignored_retry_is_no_error_and_a_final_failure_is_one(plays):
    assert {kind: sorted(errors(plays[kind])) for kind in KINDS} == dict.fromkeys(KINDS, sorted(FINAL))


def test_without_that_setting_each_retry_is_an_error_as_with_stock_celery(make_plays):
    environ = tuple(each for each in PRODUCT.environ if each[0] != "NEW_RELIC_CONFIG_FILE")
    found = make_plays(replace(PRODUCT, environ=environ), lambda play: has_last(attempts(play)))
    retries = [(task, "Retry") for task in ("recovers", "fails", "fails", "asks", "changes", "calls")]
    expected = sorted([*retries, *FINAL])
    assert {kind: sorted(errors(found[kind])) for kind in KINDS} == dict.fromkeys(KINDS, expected)
