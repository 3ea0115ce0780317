"""The dashboard and the alert rules in a real Prometheus that reads a running collector."""

import math
import time
from itertools import count

import pytest

from celery_rmq_delay.events.schema import EXHAUSTED
from celery_rmq_delay.testing import ServerNotFoundError
from celery_rmq_delay.testing.plugin import skip_or_fail
from celery_rmq_delay.testing.servers.host import free_port
from tests.support import monitoring
from tests.support.django.metrics import everything, tally
from tests.support.django.reported import event
from tests.support.prometheus import PrivatePrometheus
from tests.support.waiting import wait_for

QUERIES = [
    (panel["title"], target["refId"], monitoring.expression(target, rate_interval="30s"))
    for panel in monitoring.panels()
    for target in panel["targets"]
]


def without_data(prometheus):
    """Return the queries of the dashboard without a number in the last half minute."""
    end = time.time()
    return [
        query
        for query in QUERIES
        if not any(
            math.isfinite(float(value))
            for series in prometheus.series(query[-1], end - 30, end, 1)
            for _, value in series["values"]
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_every_panel_has_data_and_every_rule_is_evaluated(rig):
    everything()
    target, numbers = f"127.0.0.1:{free_port()}", count()
    try:
        server = PrivatePrometheus(target)
    except ServerNotFoundError as error:
        skip_or_fail(error)

    def all_have_data():
        task = f"task-{next(numbers)}"
        rig.send(event(task), event(task, EXHAUSTED, attempt=1))
        tally(parked=1, recovered=1, exhausted=1, succeeded=2)
        missing[:] = without_data(server)
        return not missing

    missing: list[tuple[str, str, str]] = []
    with rig.command("--http", target) as process, server:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            wait_for(all_have_data, "data in all panels", pause=1)
        except AssertionError:
            pytest.fail(f"Without data: {missing}")
        rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in monitoring.alerts()}
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
