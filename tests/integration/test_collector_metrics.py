"""A running collector: its metrics over HTTP, its alerts over HTTP."""

import signal

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from celery_rmq_delay.events.schema import EXHAUSTED
from celery_rmq_delay.testing.servers.host import free_port
from tests.support import ROOT
from tests.support.django.collecting import ended
from tests.support.django.receivers import webhook
from tests.support.django.reported import event
from tests.support.waiting import BUSY, wait_for

SETTINGS = """
from shop.settings import *
RMQ_DELAY = {"NOTIFY": {"webhook": "%s"}}
"""


def scraped(url):
    answer = httpx.get(f"{url}/metrics", timeout=BUSY)
    assert (answer.status_code, answer.headers["Content-Type"].partition(";")[0]) == (200, "text/plain")
    found = [sample for family in parse(answer.text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_metrics_are_served_and_alerts_are_sent(rig, tmp_path):
    url = f"http://127.0.0.1:{(port := free_port())}"
    with webhook() as hook:
        (tmp_path / "notified.py").write_text(SETTINGS % hook.url)
        environ = {"DJANGO_SETTINGS_MODULE": "notified", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        rig.send(event("a"), event("a", EXHAUSTED, attempt=1))
        with rig.command("--http", f":{port}", **environ) as process:
            process.stdout.readline()
            wait_for(lambda: hook.posts, "the alert")
            found = scraped(url)
            assert httpx.get(f"{url}/healthz", timeout=BUSY).status_code == 200
            code, _ = ended(process, signal.SIGTERM)
    assert code == 0
    assert found["rmq_delay_exhausted", "payments"] == 1
    assert found["rmq_delay_retry_lateness_seconds_count", "payments"] == 1
    assert found["rmq_delay_tasks_exhausted_total", "payments", "orders.tasks.charge"] == 1
    assert found["rmq_delay_broker_up",] == found["rmq_delay_database_up",] == 1
    (alert,) = hook.posts[0]["alerts"]
    assert (alert["task_id"], alert["exception_type"]) == ("a", "builtins.TimeoutError")
