"""Metrics: they agree with the tables; rules and dashboard of the package use exported metrics only."""

import re
import subprocess
import sys
import threading
from typing import Any

import amqp
import promql_parser
import pytest
from django.core.management.base import CommandError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from celery_rmq_delay import RetryableTask
from celery_rmq_delay.contrib.django import prometheus
from celery_rmq_delay.contrib.django.models import CollectorStatus, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services.prune import prune
from tests.support import ROOT, monitoring
from tests.support.commands import run
from tests.support.corpus import corpus
from tests.support.django.commands import manage
from tests.support.django.databases import Database
from tests.support.django.metrics import everything, tally
from tests.support.django.records import record
from tests.support.django.shop import make, of

ALERTS = monitoring.alerts()
PANELS = monitoring.panels()

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(autouse=True)
def no_lateness(shop):
    """Clear the measured lateness, in a project without a broker."""
    prometheus.lateness.clear()
    yield
    prometheus.lateness.clear()


def samples(registry=None):
    """Return the exposed samples: values by name and label values."""
    text, _ = prometheus.exposition(registry or prometheus.registry(max_age=0))
    found = [sample for family in plain_text(text.decode()) for sample in family.samples]
    by_labels = {(sample.name, tuple(sample.labels.values())): sample.value for sample in found}
    assert len(by_labels) == len(found), "a name and its labels occur twice: Prometheus keeps one of the values"
    return by_labels


def test_the_metrics_agree_with_the_tables(database):
    everything()
    due = TaskRecord.objects.filter(tier=1).order_by("due_at")
    exhausted = TaskRecord.objects.filter(state="EXHAUSTED").order_by("exhausted_at")
    heartbeat = CollectorStatus.objects.get().heartbeat_at
    charge = ("payments", "payments.charge")
    found = samples()
    expected: Samples = {
        ("rmq_delay_database_up", ()): 1,
        ("rmq_delay_parked", ("payments", "1")): 2,
        ("rmq_delay_parked", ("payments", "2")): 1,
        ("rmq_delay_parked", ("mail", "exact")): 1,
        ("rmq_delay_due", ("payments", "1")): 2,
        ("rmq_delay_due", ("payments", "2")): 0,
        ("rmq_delay_due", ("mail", "exact")): 0,
        ("rmq_delay_overdue", ("payments", "1")): 1,
        ("rmq_delay_overdue", ("payments", "2")): 0,
        ("rmq_delay_oldest_due_timestamp_seconds", ("payments", "1")): due[0].due_at.timestamp(),
        ("rmq_delay_exhausted", ("payments",)): 2,
        ("rmq_delay_oldest_exhausted_timestamp_seconds", ("payments",)): exhausted[0].exhausted_at.timestamp(),
        ("rmq_delay_outcome_unknown", ("payments",)): 1,
        ("rmq_delay_unreadable_messages", ()): 1,
        ("rmq_delay_tasks_parked_total", charge): 11,
        ("rmq_delay_tasks_recovered_total", charge): 5,
        ("rmq_delay_tasks_exhausted_total", charge): 3,
        ("rmq_delay_tasks_succeeded_total", charge): 1000,
        ("rmq_delay_operations", ("requeue", "DONE")): 1,
        ("rmq_delay_operations", ("requeue", "FAILED")): 1,
        ("rmq_delay_operation_tasks", ("requeue", "ok")): 40,
        ("rmq_delay_operation_tasks", ("requeue", "skipped")): 2,
        ("rmq_delay_operation_tasks", ("requeue", "failed")): 1,
        ("rmq_delay_operation_tasks", ("requeue", "unknown")): 1,
        ("rmq_delay_collector_heartbeat_timestamp_seconds", ("c1",)): heartbeat.timestamp(),
        ("rmq_delay_collector_lag_seconds", ("c1",)): 1.5,
        ("rmq_delay_collector_waiting_messages", ("c1",)): 7,
        ("rmq_delay_collector_parked_difference", ("c1",)): -2,
        ("rmq_delay_collector_events_total", ("c1",)): 100,
        ("rmq_delay_collector_exhausted_messages_total", ("c1",)): 3,
        ("rmq_delay_broker_up", ()): 0,
        ("rmq_delay_retry_lateness_seconds_count", ("payments",)): 1,
        ("rmq_delay_retry_lateness_seconds_bucket", ("0.25", "payments")): 0,
        ("rmq_delay_retry_lateness_seconds_bucket", ("0.5", "payments")): 1,
    }
    assert {key: found.get(key) for key in expected} == pytest.approx(expected)
    assert ("rmq_delay_oldest_due_timestamp_seconds", ("mail", "exact")) not in found


@pytest.mark.parametrize(
    ("accept", "parse"),
    [("", plain_text), ("text/plain", plain_text), ("application/openmetrics-text; version=1.0.0", openmetrics)],
)
def test_both_text_formats_can_be_parsed(sqlite, accept, parse):
    everything()
    text, content_type = prometheus.exposition(prometheus.registry(), accept)
    names = [family.name for family in parse(text.decode())]
    assert len(names) == len(set(names)) > 15
    assert ("openmetrics" in content_type) == ("openmetrics" in accept)
    assert all(name.startswith("rmq_delay_") for name in names)


def test_empty_tables_have_metrics_without_samples(database):
    assert samples() == {
        ("rmq_delay_database_up", ()): 1,
        ("rmq_delay_unreadable_messages", ()): 0,
        ("rmq_delay_broker_up", ()): 0,
    }


def test_hostile_names_are_labels_like_others(sqlite):
    hostile = 'a"b\\c\nd{x="1"} # \u202e'
    record(TaskState.EXHAUSTED, queue=hostile)
    assert samples()["rmq_delay_exhausted", (hostile,)] == 1


def test_counters_do_not_fall_when_old_tallies_are_pruned_and_rise_with_new_ones(database, settings):
    for days in (500, 400, 1, 0):
        tally(days=days, parked=days + 1)
    metrics = prometheus.registry(max_age=0)
    key = ("rmq_delay_tasks_parked_total", ("payments", "payments.charge"))
    before = samples(metrics)[key]
    settings.RMQ_DELAY = {"KEEP_HISTORY_DAYS": 365}
    assert prune()["tallies"] == 2
    assert samples(metrics)[key] == samples()[key] == before == 905
    tally(parked=1)
    assert samples(metrics)[key] == 906


def test_the_tables_are_read_at_most_once_per_interval(database):
    everything()
    metrics = prometheus.registry()
    first = samples(metrics)
    record(TaskState.EXHAUSTED)
    with CaptureQueriesContext(connection) as queries:
        assert samples(metrics) == first
    assert len(queries) == 0
    with CaptureQueriesContext(connection) as queries:
        samples()
    assert len(queries) <= 8


def test_a_database_that_is_down_is_a_metric_and_no_error(tmp_path, django_db_blocker):
    from tests.support.django.databases import using

    empty = Database({"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "no" / "such.sqlite3")}, {})
    with django_db_blocker.unblock(), using(empty):
        assert samples() == {("rmq_delay_database_up", ()): 0, ("rmq_delay_broker_up", ()): 0}


def test_django_is_imported_when_metrics_are_read_and_not_before():
    code = (
        "import sys, celery_rmq_delay.contrib.django.prometheus as p; p.registry(); print('django.db' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture
def broker(rmq_broker):
    """A project with a broker that has one of the two queues of the collector."""
    with of(make(rmq_broker.url, prefix="metrics", queue="metrics")) as app, app.connection() as connection:
        channel = connection.default_channel
        channel.queue_declare("metrics.exhausted", durable=True, auto_delete=False)
        yield
        channel.queue_delete("metrics.exhausted")


@pytest.fixture
def exported(sqlite, broker):
    """The labels of every exported sample name, with those that Prometheus adds."""
    everything()
    text, _ = prometheus.exposition(prometheus.registry())
    found = [sample for family in plain_text(text.decode()) for sample in family.samples]
    return {sample.name: {*sample.labels, "instance", "job"} for sample in found}


def test_the_broker_is_counted_as_well(sqlite, broker):
    found = samples()
    expected: Samples = {
        ("rmq_delay_broker_up", ()): 1,
        ("rmq_delay_broker_parked", ("metrics", "2")): 0,
        ("rmq_delay_broker_parked", ("", "exact")): 0,
        ("rmq_delay_broker_waiting", ("exhausted",)): 0,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert ("rmq_delay_broker_waiting", ("events",)) not in found


def test_the_tiers_of_a_tasks_own_ladder_are_added_to_those_of_its_queue(sqlite, rmq_vhost):
    app = make(rmq_vhost)
    app.task(base=RetryableTask, name="payments.refund", tiers=["3h", "4h", "5h"], shared=False)(make)
    run(app, "apply")
    parked = {"payments.retry.1.1h": 2, "payments.retry.1.3h": 3, "payments.retry.3.5h": 1}
    with app.connection() as connection:
        for queue, count in parked.items():
            for _ in range(count):
                connection.default_channel.basic_publish(amqp.Message("{}"), "", queue)
            connection.default_channel.queue_declare(queue, passive=True)  # the broker answers when it has them
    with of(app):
        found = samples()
    assert [found["rmq_delay_broker_parked", ("payments", tier)] for tier in "123"] == [5, 0, 1]


def parsed(expression):
    """Return each selector of an expression, and the aggregations around it, the outermost first."""
    found: list[tuple[Any, list[Any]]] = []
    around: list[Any] = []

    def enter(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node, [*around]))
        elif isinstance(node, promql_parser.AggregateExpr):
            around.append(node)

    def leave(node):
        if isinstance(node, promql_parser.AggregateExpr):
            around.pop()

    promql_parser.walk(promql_parser.parse(expression), enter, leave)
    return found


def labels_used(expression, exported):
    """Check that an expression uses exported metrics and their labels only; return the labels that it groups by."""
    every = set()
    for selector, around in parsed(expression):
        known = exported[selector.name]
        assert {matcher.name for matcher in selector.matchers.matchers} <= known
        grouped = {label for each in around if each.modifier is not None for label in each.modifier.labels}
        assert grouped <= known
        every |= grouped
    return every


def test_each_rule_uses_exported_metrics(exported):
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS) == 11
    for rule in ALERTS:
        grouped = labels_used(rule["expr"], exported)
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert used <= grouped, rule["alert"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))


def test_each_panel_uses_exported_metrics(exported):
    for panel in PANELS:
        for target in panel["targets"]:
            grouped = labels_used(monitoring.expression(target), exported)
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= grouped, panel["title"]
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@corpus("expression", [monitoring.expression(target) for each in PANELS for target in each["targets"]])
def test_panels_take_the_maximum_over_instances_and_sum_the_lateness_only(expression):
    for selector, around in parsed(expression):
        wanted = "sum" if selector.name.startswith("rmq_delay_retry_lateness") else "max"
        assert str(around[-1].op) == wanted


def test_the_panels_have_unique_ids_a_description_a_unit_and_no_overlap():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert all(0 <= x < 24 for x, _ in cells)
        taken |= cells


def test_the_variables_of_the_dashboard_are_a_data_source_and_a_queue(exported):
    source, queue = monitoring.dashboard()["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (queue["name"], queue["type"]) == ("queue", "query")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", queue["query"]["query"]).groups()
    assert label in exported[metric]


def test_the_command_writes_the_dashboard_and_the_rules(tmp_path):
    paths = [tmp_path / name for name in ("grafana-dashboard.json", "prometheus-rules.yml")]
    assert manage("monitoring", "--output", str(tmp_path)).splitlines() == [f"Wrote {path}" for path in paths]
    assert [path.read_bytes() for path in paths] == [(monitoring.FOLDER / path.name).read_bytes() for path in paths]


def test_the_command_replaces_a_file_with_force_only(tmp_path):
    rules, board = tmp_path / "prometheus-rules.yml", tmp_path / "grafana-dashboard.json"
    rules.write_text("mine")
    with pytest.raises(CommandError, match=f"{rules} exist. Use --force"):
        manage("monitoring", "--output", str(tmp_path))
    assert (rules.read_text(), board.exists()) == ("mine", False)
    manage("monitoring", "--output", str(tmp_path), "--force")
    assert rules.read_text() != "mine"
    assert board.exists()


def test_the_command_refuses_an_output_that_is_no_folder(tmp_path):
    with pytest.raises(CommandError, match=r"--output: .*/away is not a folder\. Create it first"):
        manage("monitoring", "--output", str(tmp_path / "away"))
    (tmp_path / "prometheus-rules.yml").mkdir()
    with pytest.raises(CommandError, match=r"prometheus-rules\.yml: Is a directory"):
        manage("monitoring", "--output", str(tmp_path), "--force")
    (tmp_path / "grafana-dashboard.json").unlink()
    (tmp_path / "grafana-dashboard.json").symlink_to("/dev/full")
    with pytest.raises(CommandError, match=r"grafana-dashboard\.json: No space left on device"):
        manage("monitoring", "--output", str(tmp_path), "--force")


def test_every_metric_is_documented_and_no_other(exported):
    text = (ROOT / "docs/operate/alerts.md").read_text()
    rows = re.findall(r"^\| `(rmq_delay_\w+)` \|(.*?)\|", text, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    actual = {re.sub(r"_(bucket|count|sum)$", "", name): labels - {"instance", "job", "le"}
              for name, labels in exported.items() if not name.endswith("_created")}  # fmt: skip
    assert documented == actual


def test_threads_that_ask_at_once_read_once(sqlite):
    everything()
    metrics = prometheus.registry()
    found: list[Samples] = []

    def ask():
        found.append(samples(metrics))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert all(each == found[0] for each in found)
