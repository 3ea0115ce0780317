"""OpenTelemetry: spans of the Celery instrumentation."""

import pytest

from tests.support.compatibility.plays import KINDS, Attempt, Product, assert_same, parents

pytest.importorskip("opentelemetry.instrumentation.celery")

AFTER = """
import os
from contextlib import contextmanager
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
file = open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "a")
one_line = lambda span: span.to_json(indent=None) + "\\n"
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=one_line)))
trace.set_tracer_provider(provider)

@contextmanager
def publishing(name):
    CeleryInstrumentor().instrument()
    with trace.get_tracer("shop").start_as_current_span("checkout of " + name):
        yield
"""
PRODUCT = Product("with_opentelemetry.py", after=AFTER)


def attempts(play):
    return [
        Attempt(
            each["attributes"]["celery.task_name"],
            each["status"]["status_code"],
            each["context"]["trace_id"],
            each["parent_id"],
        )
        for each in play.lines()
        if each["kind"] == "SpanKind.CONSUMER"
    ]


def test_attempts_have_the_status_and_the_trace_that_they_have_with_stock_celery(plays):
    assert_same(*(attempts(plays[kind]) for kind in KINDS), ["UNSET", "UNSET", "ERROR"])


def test_a_parked_retry_is_no_error_and_a_final_failure_is_one(plays):
    for kind in KINDS:
        lines = plays[kind].lines()
        failed = {each["name"] for each in lines if [event["name"] for event in each["events"]] == ["exception"]}
        assert failed == {"run/fails", "run/gives_up", "run/last"}
        reasons = [each["attributes"].get("celery.retry.reason") for each in lines if each["name"] == "run/fails"]
        assert reasons == ["Retry in 0.2s: Boom('attempt 0')", "Retry in 0.2s: Boom('attempt 1')", None]


def test_a_parked_retry_has_no_span_of_a_publish_and_its_attempts_are_siblings(plays):
    """The difference: Celery publishes a new message for each retry."""
    published = {kind: [each["name"] for each in plays[kind].lines()].count("apply_async/fails") for kind in KINDS}
    assert published == {"stock": 3, "retryable": 1}
    assert [parents(attempts(plays[kind]), "fails") for kind in KINDS] == [3, 1]
