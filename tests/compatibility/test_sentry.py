"""Sentry: errors and transactions of the Celery integration."""

import pytest

from tests.support.compatibility.plays import KINDS, WAIT, Attempt, Product, assert_same, parents

pytest.importorskip("sentry_sdk")

#: Writes what would be sent.
BEFORE = """
import json, os
import sentry_sdk.client
import sentry_sdk.transport

class ToFile(sentry_sdk.transport.Transport):
    def capture_envelope(self, envelope):
        with open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "a") as file:
            for item in envelope.items:
                if item.headers["type"] in ("event", "transaction"):
                    file.write(json.dumps({"type": item.headers["type"], **item.payload.json}, default=str) + "\\n")

sentry_sdk.client.make_transport = ToFile
"""
AFTER = """
import sentry_sdk

def publishing(name):
    return sentry_sdk.start_transaction(op="http.server", name="checkout of " + name)
"""
PRODUCT = Product("with_sentry.py", environ=(("SENTRY_DSN", "http://key@127.0.0.1:1/1"),), before=BEFORE, after=AFTER)


def errors(play):
    """Task, exception and message of each error, in their order."""
    found = [(each, each["exception"]["values"][-1]) for each in play.lines() if each["type"] == "event"]
    ids = {task["id"]: name for name, task in play.results.items()}
    return [(ids[each["tags"]["celery_task_id"]], error["type"], error["value"]) for each, error in found]


def spans(play, transaction):
    """Operations of the spans in a transaction, without those of the result backend."""
    return [each["op"] for each in transaction["spans"] if not each["op"].startswith("db")]


def transactions(play, op):
    found = [each for each in play.lines() if each["type"] == "transaction"]
    return [each for each in found if each["contexts"]["trace"]["op"] == op]


def attempts(play):
    return [
        Attempt(each["transaction"], trace["status"], trace["trace_id"], trace.get("parent_span_id"))
        for each in transactions(play, "queue.task.celery")
        for trace in [each["contexts"]["trace"]]
    ]


def test_attempts_have_the_status_and_the_trace_that_they_have_with_stock_celery(plays):
    assert_same(*(attempts(plays[kind]) for kind in KINDS), ["aborted", "aborted", "internal_error"])


def test_a_parked_retry_is_no_error_and_a_final_failure_is_one(plays):
    final = [("fails", "Boom", "attempt 2"), ("gives_up", "Hopeless", "no card will do")]
    expected = [*final, ("last", "Hopeless", "the last one")]
    assert {kind: errors(plays[kind]) for kind in KINDS} == dict.fromkeys(KINDS, expected)


def test_a_parked_retry_has_no_span_of_a_publish_and_its_attempts_are_siblings(plays):
    """The difference: Celery publishes a new message for each retry."""
    found = {
        kind: [spans(plays[kind], each) for each in transactions(plays[kind], "queue.task.celery")[1:3]]
        for kind in KINDS
    }
    assert found["stock"] == [["queue.process", *["queue.submit.celery"] * 2, "queue.publish"], ["queue.process"]]
    assert found["retryable"] == [["queue.process"], ["queue.process"]]
    assert [parents(attempts(plays[kind]), "fails") for kind in KINDS] == [3, 1]


def test_the_latency_of_an_attempt_includes_all_earlier_waits(plays):
    """The other difference: it is counted from the publish, and Celery publishes each retry."""

    def latencies(kind):
        fails = [each for each in transactions(plays[kind], "queue.task.celery") if each["transaction"] == "fails"]
        return [each["spans"][0]["data"]["messaging.message.receive.latency"] / 1_000 for each in fails]

    for kind, waits in (("stock", (0, 1, 1)), ("retryable", (0, 1, 2))):
        assert [latency >= wait * WAIT for latency, wait in zip(latencies(kind), waits, strict=True)] == [True] * 3
        assert sorted(latencies(kind)) == latencies(kind) or kind == "stock"
