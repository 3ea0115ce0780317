"""Elastic APM: errors and transactions of its Celery integration."""

from __future__ import annotations

from collections.abc import Callable
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

pytest.importorskip("elasticapm")

BEFORE = """
import gzip, os
import elasticapm.transport.base

class ToFile(elasticapm.transport.base.Transport):
    def send(self, data, forced_flush=False):
        with open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "ab") as file:
            file.write(gzip.decompress(data).rstrip(b"\\n") + b"\\n")
"""
AFTER = """
import elasticapm
from contextlib import contextmanager

@contextmanager
def publishing(name):
    client = elasticapm.get_client()
    client.begin_transaction("request")
    yield
    client.end_transaction("checkout of " + name, "OK")
"""
ELASTIC = Product(
    "with_elastic_apm.py",
    before=BEFORE,
    after=AFTER,
    environ=(
        ("ELASTIC_APM_TRANSPORT_CLASS", "before_product.ToFile"),
        ("ELASTIC_APM_CENTRAL_CONFIG", "false"),
        ("ELASTIC_APM_CLOUD_PROVIDER", "none"),
        ("ELASTIC_APM_METRICS_INTERVAL", "0s"),
        ("ELASTIC_APM_SERVICE_NAME", "shop"),
    ),
)


def transactions(play: Play, kind: str) -> list[dict[str, Any]]:
    found = [each["transaction"] for each in play.lines() if "transaction" in each]
    return [each for each in found if each["type"] == kind]


def attempts(play: Play) -> list[Attempt]:
    return [
        Attempt(
            each["name"].rpartition(".")[2],
            f"{each['result']} {each['outcome']}",
            each["trace_id"],
            each.get("parent_id"),
        )
        for each in transactions(play, "celery")
    ]


def errors(play: Play) -> list[str]:
    return [each["error"]["exception"]["message"] for each in play.lines() if "error" in each]


@pytest.fixture(scope="module")
def plays(make_plays: Callable[..., dict[str, Play]]) -> dict[str, Play]:
    return make_plays(ELASTIC, lambda play: any(each.task == "last" for each in attempts(play)))


def test_each_attempt_has_the_status_that_it_has_with_stock_celery(plays: dict[str, Play]) -> None:
    stock, ours = (statuses(attempts(plays[kind])) for kind in KINDS)
    assert ours == stock
    assert [status for task, status in ours if task == "fails"] == ["RETRY failure", "RETRY failure", "FAILURE failure"]


def test_all_attempts_of_a_call_are_in_the_trace_of_its_caller(plays: dict[str, Play]) -> None:
    assert_one_trace_for_each_call(attempts(plays["stock"]))
    assert_one_trace_for_each_call(attempts(plays["retryable"]))


def test_a_parked_retry_is_no_error_and_a_final_failure_is_one(plays: dict[str, Play]) -> None:
    final = ["Boom: attempt 2", "Hopeless: no card will do", "Hopeless: the last one"]
    assert {kind: errors(plays[kind]) for kind in KINDS} == dict.fromkeys(KINDS, final)
