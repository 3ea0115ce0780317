"""Elastic APM: errors and transactions of its Celery integration."""

import pytest

from tests.support.compatibility.plays import KINDS, Attempt, Product, assert_same

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
PRODUCT = Product(
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


def transactions(play, kind):
    found = [each["transaction"] for each in play.lines() if "transaction" in each]
    return [each for each in found if each["type"] == kind]


def attempts(play):
    return [
        Attempt(
            each["name"].rpartition(".")[2],
            f"{each['result']} {each['outcome']}",
            each["trace_id"],
            each.get("parent_id"),
        )
        for each in transactions(play, "celery")
    ]


def errors(play):
    return [each["error"]["exception"]["message"] for each in play.lines() if "error" in each]


def test_attempts_have_the_status_and_the_trace_that_they_have_with_stock_celery(plays):
    assert_same(*(attempts(plays[kind]) for kind in KINDS), ["RETRY failure", "RETRY failure", "FAILURE failure"])


def test_a_parked_retry_is_no_error_and_a_final_failure_is_one(plays):
    final = ["Boom: attempt 2", "Hopeless: no card will do", "Hopeless: the last one"]
    assert {kind: errors(plays[kind]) for kind in KINDS} == dict.fromkeys(KINDS, final)
