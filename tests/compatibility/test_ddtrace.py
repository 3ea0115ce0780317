"""Datadog: spans of ddtrace's Celery integration."""

import importlib.util

import pytest

from tests.support.compatibility.plays import KINDS, Attempt, Product, assert_same, parents

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
PRODUCT = Product(
    "with_ddtrace.py",
    after=AFTER,
    environ=(
        ("DD_CELERY_DISTRIBUTED_TRACING", "true"),
        ("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "false"),
        ("DD_REMOTE_CONFIGURATION_ENABLED", "false"),
        ("DD_TRACE_AGENT_URL", "http://127.0.0.1:1"),
    ),
)


def attempts(play):
    return [
        Attempt(each["resource"], f"error {each['error']}", each["trace"], each["parent"])
        for each in play.lines()
        if each["name"] == "celery.run"
    ]


def test_attempts_have_the_status_and_the_trace_that_they_have_with_stock_celery(plays):
    assert_same(*(attempts(plays[kind]) for kind in KINDS), ["error 0", "error 0", "error 1"])


def test_a_parked_retry_is_no_error_and_a_final_failure_is_one(plays):
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


def test_a_parked_retry_has_no_span_of_a_publish_and_its_attempts_are_siblings(plays):
    """The difference: Celery publishes a new message for each retry."""
    published = {
        kind: [(each["name"], each["resource"]) for each in plays[kind].lines()].count(("celery.apply", "fails"))
        for kind in KINDS
    }
    assert published == {"stock": 3, "retryable": 1}
    assert [parents(attempts(plays[kind]), "fails") for kind in KINDS] == [3, 1]
