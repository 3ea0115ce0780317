"""Datadog: spans of ddtrace's Celery integration."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.support.compatibility.plays import (
    KINDS,
    Attempt,
    Play,
    Product,
    assert_one_trace_for_each_call,
    parents,
    statuses,
)

pytestmark = pytest.mark.slow  # three workers; test_sentry.py and test_opentelemetry.py run the same calls

if importlib.util.find_spec("ddtrace") is None:
    pytest.skip("ddtrace is not installed", allow_module_level=True)

AFTER = """
import json, os
from ddtrace.trace import TraceFilter, tracer

class ToFile(TraceFilter):
    def process_trace(self, trace):
        with open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "a") as file:
            for span in trace:
                file.write(json.dumps({"name": span.name, "resource": span.resource, "error": span.error,
                    "trace": span.trace_id, "id": span.span_id, "parent": span.parent_id,
                    "tags": {name: str(value) for name, value in span.get_tags().items()}}) + "\\n")
        return None

tracer.configure(trace_processors=[ToFile()])

def publishing(name):
    return tracer.trace("checkout of " + name)
"""
DDTRACE = Product(
    "with_ddtrace.py",
    after=AFTER,
    environ=(
        ("DD_CELERY_DISTRIBUTED_TRACING", "true"),
        ("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "false"),
        ("DD_REMOTE_CONFIGURATION_ENABLED", "false"),
        ("DD_TRACE_AGENT_URL", "http://127.0.0.1:1"),
    ),
)


def attempts(play: Play) -> list[Attempt]:
    return [
        Attempt(each["resource"], f"error {each['error']}", each["trace"], each["parent"])
        for each in play.lines()
        if each["name"] == "celery.run"
    ]


@pytest.fixture(scope="module")
def plays(make_plays: Callable[..., dict[str, Play]]) -> dict[str, Play]:
    return make_plays(DDTRACE, lambda play: any(each.task == "last" for each in attempts(play)))


def test_each_attempt_has_the_status_that_it_has_with_stock_celery(plays: dict[str, Play]) -> None:
    stock, ours = (statuses(attempts(plays[kind])) for kind in KINDS)
    assert ours == stock
    assert [status for task, status in ours if task == "fails"] == ["error 0", "error 0", "error 1"]


def test_all_attempts_of_a_call_are_in_the_trace_of_its_caller(plays: dict[str, Play]) -> None:
    assert_one_trace_for_each_call(attempts(plays["stock"]))
    assert_one_trace_for_each_call(attempts(plays["retryable"]))


def test_a_parked_retry_is_no_error_and_a_final_failure_is_one(plays: dict[str, Play]) -> None:
    for kind in KINDS:
        failed = {each["resource"]: each["tags"]["error.type"] for each in plays[kind].lines() if each["error"]}
        assert {task: error.rpartition(".")[2] for task, error in failed.items()} == {
            "fails": "Boom",
            "gives_up": "Hopeless",
            "last": "Hopeless",
        }
        fails = [
            each["tags"] for each in plays[kind].lines() if (each["name"], each["resource"]) == ("celery.run", "fails")
        ]
        assert [tags.get("celery.retry.reason") for tags in fails] == [
            "Retry in 0.2s: Boom('attempt 0')",
            "Retry in 0.2s: Boom('attempt 1')",
            None,
        ]


def test_a_parked_retry_has_no_span_of_a_publish_and_its_attempts_are_siblings(plays: dict[str, Play]) -> None:
    """The difference: Celery publishes a new message for each retry."""
    published = {
        kind: [(each["name"], each["resource"]) for each in plays[kind].lines()].count(("celery.apply", "fails"))
        for kind in KINDS
    }
    assert published == {"stock": 3, "retryable": 1}
    assert [parents(attempts(plays[kind]), "fails") for kind in KINDS] == [3, 1]
