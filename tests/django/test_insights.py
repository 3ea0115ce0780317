"""Loading a finished output of the analytics, the page that shows it, and possible errors."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from html import unescape
from io import StringIO
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from pyarrow import fs

from celery_rmq_delay.contrib.django.admin.insight_page import wilson
from celery_rmq_delay.contrib.django.conf import conf
from celery_rmq_delay.contrib.django.models import InsightRun
from celery_rmq_delay.contrib.django.services import insight_rows, insight_tables
from celery_rmq_delay.contrib.django.services import insight_runs as service
from celery_rmq_delay.contrib.django.services.insight_tables import TABLES
from celery_rmq_delay.exceptions import OutputError, SettingsError
from celery_rmq_delay.history.output import CURRENT, manifest_of, table_files
from celery_rmq_delay.history.tables import FIGURES
from celery_rmq_delay.ladders import Ladder
from tests.support.corpus import corpus
from tests.support.django import insights, people
from tests.support.django.commands import manage
from tests.support.django.markup import faults
from tests.support.waiting import SECONDS

PAGE = "/admin/rmq_delay/insightrun/"
TODAY = datetime.now(timezone.utc).date()
#: Code that sets up Django in a Python process.
SETUP = (
    "import django, sys; from django.conf import settings; from tests.support.django import settings as t\n"
    "settings.configure(**{n: v for n, v in vars(t).items() if n.isupper()}); django.setup()\n"
)
HOSTILE = (
    "<script>alert('script')</script>",
    "\" onmouseover=\"alert('attribute')\" x='",
    "\u202egnitset\u202c \u05e9\u05dc\u05d5\u05dd",
    "{{ 7*7 }}{% debug %}",
    "nul \0 and a very long name" + "A" * 5_000,
)


@pytest.fixture
def output(tmp_path):
    """A finished output whose last day is today."""
    return insights.finished(tmp_path / "output", TODAY)


def shown(query="", *permissions):
    browser = people.staff(*(permissions or ("view_insightrun",)), name=f"bob{len(people.VIEWS)}{query[:60]}")
    answer = browser.get(f"{PAGE}{query}")
    assert answer.status_code == 200
    page = answer.content.decode()
    assert faults(page) == []
    return page


def shown_of(output):
    """Return the page of an output, which is loaded first."""
    service.load(str(output))
    return shown()


def loaded(table):
    """Return the loaded rows of a table."""
    return InsightRun.objects.get().rows_of(table)


def test_the_page_needs_only_columns_that_the_pipeline_writes_in_types_that_it_understands():
    for table, columns in TABLES.items():
        assert set(columns) <= set(insights.SCHEMAS[table].names), table
        insight_tables._check(table, "part-0.parquet", insights.SCHEMAS[table])


def test_spark_writes_the_types_of_the_schema():
    pytest.importorskip("pyspark", reason="without Spark nothing writes them")
    from celery_rmq_delay.analytics import schema

    types = {
        "string": "string", "bigint": "int64", "int": "int32", "double": "double", "boolean": "bool",
        "timestamp": "timestamp[us, tz=UTC]", "array<bigint>": "list<item: int64>",
        "array<string>": "list<item: string>",
    }  # fmt: skip
    for table, written in insights.SCHEMAS.items():
        by_spark = [(each.name, types[each.dataType.simpleString()]) for each in getattr(schema, table.upper())]
        assert by_spark == [(each.name, str(each.type)) for each in written], table


def test_a_finished_output_is_loaded_with_figures_backtest_and_advice_per_exception(database, output):
    run = service.load(str(output), source="s3://key:secret@shop/history")
    assert (run.first_day, run.last_day) == (TODAY - timedelta(days=6), TODAY)
    assert "secret" not in run.input_url
    assert "secret" not in str(run.report)
    assert run.report["quarantined"] == {"missing:task_id": 2}
    counts = {table: len(rows) for table, rows in run.rows.items()}
    assert counts == {
        "recovery_curve": 6, "tier_outcomes": 8, "incidents": 2, "ladder_advice": 5, "exception_advice": 2,
        "what_if": 1, "hourly": 7 * 24,
    }  # fmt: skip
    first, *others = loaded("tier_outcomes")
    assert (first.task, first.tier, first.parked) == ("orders.tasks.charge", 1, 7 * (8_412 // 7))
    assert [row.tier for row in others] == [2, 3, 1, 2, 3, 1, 2]
    assert [row.queue for row in loaded("ladder_advice")] == ["payments", "payments", "mail", "reports", "default"]
    (charge,) = [row for row in loaded("recovery_curve") if row.name == "orders.tasks.charge"]
    assert charge.points[0][0] == pytest.approx(1)
    assert len(charge.points) == 291
    (what_if,) = loaded("what_if")
    assert what_if.figures["recovery"] == pytest.approx([0.95, 0.9215, 0.969])
    before = run.rows
    assert service.load(output.as_uri()).rows == before, "loading again replaces everything and changes nothing"
    assert InsightRun.objects.count() == 1
    whole, charge, mail, refused, few = loaded("ladder_advice")
    assert (whole.counted, whole.recoveries, whole.lost, charge.lost, mail.lost) == (8_102, 7_003, 12, 0, None)
    assert set(whole.current) == set(whole.advised) == set(FIGURES)
    assert whole.current["p25_s"] == pytest.approx([14, 13.58, 14.28])
    assert whole.backtest_failures == 412
    assert whole.backtest_current["mean_s"] == [61, None, None]
    assert (mail.learn, mail.backtest_failures, mail.counted) == (insights.LEARN, None, None)
    assert (refused.refused_ms, refused.advised_ms, refused.reason) == ([120_000, 120_000], [], insights.REFUSED)
    assert set(few.current["recovery"]) == {None}
    never, always = loaded("exception_advice")
    assert (never.kind, never.retries, never.wasted_ms, never.needless_ms) == ("give_up", 1_236, 7_560_000, [])
    assert (always.kind, always.retries, always.needless_ms) == ("fewer_tiers", None, [3_600_000])
    assert (always.share_low, always.longest_s) == (0.99255, 40.2)


def test_an_output_on_an_object_store_is_loaded(sqlite, output, store):
    url = f"s3://AKIAEXAMPLE:open-sesame@bucket/history-insights?{store}"
    bucket, path = fs.FileSystem.from_uri(f"{url}&allow_bucket_creation=true")
    bucket.create_dir("bucket")
    fs.copy_files(str(output), path, destination_filesystem=bucket)
    run = service.load(url)
    assert run.output_url == "s3://bucket/history-insights"
    assert len(loaded("tier_outcomes")) == 8


def test_only_the_last_day_counts_where_each_day_has_all(sqlite, output):
    insights.write(output, "ladder_advice", TODAY - timedelta(days=1), insights.ladders() * 20)
    insights.write(output, "recovery_curve", TODAY - timedelta(days=1), insights.curve("task", "x", insights.TASKS[0]))
    insights.write(output, "exception_advice", TODAY - timedelta(days=1), insights.exceptions() * 20)
    service.load(str(output))
    assert len(loaded("ladder_advice")) == 5
    assert len(loaded("exception_advice")) == 2
    assert "x" not in [row.name for row in loaded("recovery_curve")]


def test_loaded_rows_are_bounded_and_the_page_states_how_many_are_left_out(sqlite, output):
    task = insights.TASKS[0]
    many = [
        row for number in range(1, 51) for row in insights.curve("task", f"t{number}", (*task[:3], number, *task[4:]))
    ]
    many = [{**row, "share_low": None} for row in many] + insights.curve("task", "long", task) * 20
    insights.write(output, "recovery_curve", TODAY, many)
    insights.write(output, "ladder_advice", TODAY, insights.ladders() * 30)
    insights.write(output, "exception_advice", TODAY, insights.exceptions() * 100)
    rows = [{**insights.outcomes(7)[0], "task": f"t{number}", "parked": number} for number in range(500)]
    insights.write(output, "tier_outcomes", TODAY, rows)
    insights.write(output, "incidents", TODAY, insights.incidents(TODAY) * 600)
    run = service.load(str(output))
    assert run.left_out["recovery_curve"] == 51 - insight_rows.CURVES
    assert len(loaded("recovery_curve")) == insight_rows.CURVES
    (long,) = [row for row in loaded("recovery_curve") if row.name == "long"]
    assert len(long.points) <= insight_rows.POINTS + 1
    assert len(loaded("tier_outcomes")) == insight_rows.OUTCOMES
    assert len(loaded("incidents")) == insight_rows.INCIDENTS
    assert len(loaded("ladder_advice")) == insight_rows.LADDERS
    assert len(loaded("exception_advice")) == insight_rows.EXCEPTIONS
    assert run.left_out["exception_advice"] == 200 - insight_rows.EXCEPTIONS
    page = shown()
    assert "31 more are left out" in page
    assert len(page) < 600_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_stay_text(database, tmp_path, text):
    task = (text, text, text, *insights.TASKS[0][3:])
    insights.write(tmp_path, "recovery_curve", TODAY, [*insights.curve("task", text, task)])
    advice = {**insights.ladders()[0], "queue": text, "task": text, "reason": text}
    refused = {**insights.ladders()[3], "queue": text, "task": text, "reason": text, "learn": text}
    insights.write(tmp_path, "ladder_advice", TODAY, [{**advice, "task": None}, advice, refused])
    errors = [{**row, "queue": text, "task": text, "exception_type": text} for row in insights.exceptions()]
    errors.append({**errors[1], "exception_type": "orders.Refused"})
    insights.write(tmp_path, "exception_advice", TODAY, errors)
    named = {"task": text, "queue": text, "exception_type": text}
    insights.write(tmp_path, "tier_outcomes", TODAY, [{**insights.outcomes(1)[0], **named}])
    lists = {name: [text] for name in ("queues", "tasks", "exceptions")}
    insights.write(tmp_path, "incidents", TODAY, [{**insights.incidents(TODAY)[0], **lists}])
    what_if = {**insights.what_if(), "queue": text, "enough_data": True, "episodes": 1}
    insights.write(tmp_path, "what_if", TODAY, [what_if])
    insights.write(tmp_path, "hourly", TODAY, insights.hours(TODAY))
    insights.report(tmp_path, TODAY)
    page = shown_of(tmp_path)
    assert "<script>alert" not in page
    assert 'onmouseover="' not in page
    assert "49{%" not in page
    for name in ("rmq-snippet", "rmq-give-up"):
        snippet = re.search(rf'<pre dir="ltr" id="{name}" tabindex="0">(.*?)</pre>', page, re.DOTALL)
        assert snippet and snippet[1].isascii()
    assert "give_up_on=(orders.Refused,)" in page


def test_an_empty_page_names_the_command_to_run(sqlite):
    assert "manage.py rmq_delay_insights" in shown()


def test_the_page_warns_of_insights_that_are_old_and_of_workers_whose_clocks_differ(sqlite, tmp_path):
    day = TODAY - timedelta(days=30)
    insights.report(insights.finished(tmp_path, day), day, clocks={"w4@shop": -60.2})
    page = words(shown_of(tmp_path))
    assert "for newer ones" in page
    assert "The clocks of these workers differ, so that times on this page are wrong: w4@shop" in page


def test_the_page_shows_curve_ladders_outcomes_and_incidents_with_few_queries(sqlite, output):
    page = shown_of(output)
    assert page.count('class="rmq-tier rmq-tier-today"') == page.count('class="rmq-tier rmq-tier-advised"') == 3
    for text in ("15s, 2m, 30m", "5s, 30s, 5m", insights.TOO_FEW, "2,120 failures: today&#x27;s ladder is as good"):
        assert text in page
    assert "&quot;payments&quot;: {&quot;tiers&quot;: [&quot;15s&quot;, &quot;2m&quot;, &quot;30m&quot;]}," in page
    assert "&quot;mail&quot;" not in page
    assert page.count('class="rmq-bar rmq-bar-incident"') == 2
    assert "<h3><bdi>ValueError</bdi></h3>" in shown("?exception=ValueError")
    assert "<h3><bdi>orders.tasks.charge</bdi></h3>" in shown("?task=unknown")
    browser = people.staff(*people.VIEWS)
    with CaptureQueriesContext(connection) as queries:
        assert browser.get(PAGE).status_code == 200
    assert len(queries) <= 6, len(queries)
    assert browser.head(PAGE).status_code == 200
    assert browser.post(PAGE).status_code == 403


def words(page):
    """Return the text of a page, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))).split())


def test_the_page_states_which_figures_are_counted_and_shows_the_backtest(sqlite, output):
    shown_words = words(shown_of(output))
    for text in (
        "Today 5s, 30s, 5m counted, 8,102 failures 83 % 81 %\N{EN DASH}85 % 2.41",
        "Advised 15s, 2m, 30m estimated 94 %",
        "The advised ladder may lose 12 of the 7,003 counted recoveries.",
        "Backtest: on the last 412 failures, which the advice does not know:",
        "Today 5s, 30s, 5m 82 % 2.40 1m1s 5m35s 18 % Advised 15s, 2m, 30m 95 % 2.10 58s 32m15s 5 %",
        'Hint: Attempts at other times would show whether 2m 30m is better: set "jitter" of the queue to 0.2',
        "37 failures: not enough data: 37 retried failures, at least 200 are needed Today: 10s, 1m",
        "Curves and advice do not include the retries of tasks that were requeued",
        "The history favours this: by the estimate, the number of attempts decides for at most 6 % of the failures.",
        "The history does not show whether that is so, or whether the number of attempts decides",
        "The figures assume that the number of attempts decides whether a task recovers, and not time.",
    ):
        assert text in shown_words
    assert shown_words.count("counted recoveries") == 1


def test_a_ladder_that_failed_its_backtest_is_shown_with_the_reason_and_not_advised(sqlite, output):
    insights.write(output, "ladder_advice", TODAY, [insights.ladders()[3]])
    page = shown_of(output)
    assert insights.REFUSED.removeprefix("keep") in words(page)
    assert "Today 30s, 5m 91 % 1.40 40s 5m30s 9 % Not advised 2m, 2m 74 % 1.30" in words(page)
    assert 'id="rmq-snippet"' not in page
    assert "Advised" not in words(page)


def test_the_page_states_which_errors_no_retry_helps_and_which_need_no_long_tier(sqlite, output):
    page = shown_of(output)
    assert (
        "orders.errors.CardRefused never recovered in 412 failures; the last attempt came 5m35s after the first "
        "(95 % interval: at most 1.0 % recover) . "
        "Use a longer ladder for a while to see whether later attempts succeed. "
        "If not, add it to give_up_on : that would have saved 1,236 retries and 2h6m of worker time. "
        "orders.tasks.charge , payments "
        "ConnectionResetError always recovered within 40s, in 512 failures "
        "(95 % interval: at least 99.2 % recover) . It does not need the tier 1h."
    ) in words(page)
    assert "@app.task(base=RetryableTask, give_up_on=(orders.errors.CardRefused,))" in page
    insights.write(output, "exception_advice", TODAY, [])
    service.load(str(output))
    assert 'id="rmq-errors"' not in shown("?task=none")


def test_incidents_are_in_the_order_of_their_failures_beyond_the_usual_number(sqlite, output):
    row = insights.incidents(TODAY)[0]
    later = {**row, "started_at": row["started_at"] + timedelta(hours=2), "queues": ["other"], "excess": 1_234_567}
    later_ones = [{**later, "excess": 20}, {**later, "failure_rate": None, "usual_rate": None}]
    insights.write(output, "incidents", TODAY, [row, *later_ones])
    service.load(str(output))
    found = loaded("incidents")
    assert [each.excess for each in found] == [1_234_567, 1_871, 1_871, 1_871, 20]
    assert (found[0].failure_rate, found[0].usual_rate) == (None, None)
    assert (found[1].queues, found[1].failure_rate, found[1].usual_rate) == (["mail", "payments"], 0.96, 0.012)
    table = shown().split("More failures than usual")[1]
    assert "usually 1\N{NO-BREAK SPACE}%" in table
    assert table.index("<td>1,234,567</td>") < table.index("<td>1,871</td>") < table.index("<td>20</td>")


@pytest.mark.parametrize(("jitter", "lanes"), [(0.0, 1), (0.1, 3), (0.2, 5), (0.5, 4), (0.3, 2)])
def test_the_jitter_lanes_of_a_tier_are_one_row(sqlite, output, jitter, lanes):
    ladder = Ladder(tiers_ms=(60_000, 600_000), jitter=jitter, lanes=lanes)
    first = {**insights.outcomes(7)[0], "queue": "jittered", "parked": 10, "recovered": 4}
    first |= {"exhausted": 2, "wasted_ms": 7}
    delays = [(tier, delay) for tier in (1, 2) for delay in ladder.lane_ttls(tier)]
    rows = [{**first, "tier": tier, "delay_ms": delay} for tier, delay in delays]
    rows += [{**first, "tier": None, "delay_ms": delay} for delay in (59_000, 61_000)]
    other = {**first, "task": "few", "tier": 1, "delay_ms": ladder.lane_ttls(1)[-1]}
    insights.write(output, "tier_outcomes", TODAY, [*rows, other])
    service.load(str(output))
    jittered = [row for row in loaded("tier_outcomes") if row.queue == "jittered"]
    found = [row for row in jittered if row.task == first["task"] and row.tier is not None]
    assert [(row.tier, row.delay_ms) for row in found] == [(1, 60_000), (2, 600_000)]
    assert {(row.parked, row.recovered, row.exhausted, row.wasted_ms) for row in found} == {
        (10 * lanes, 4 * lanes, 2 * lanes, 7 * lanes)
    }
    assert len([row for row in jittered if row.tier is None]) == 2
    assert [row.delay_ms for row in jittered if row.task == "few"] == [60_000]
    page = shown()
    assert "tier 1 (1 min)" in page
    assert "tier 2 (10 min)" in page


def test_the_tiers_of_two_ladders_of_a_queue_are_two_rows(sqlite, output):
    first = {**insights.outcomes(7)[0], "queue": "jittered"}
    rows = [{**first, "tier": 1, "delay_ms": delay} for delay in (54_000, 60_000, 66_000, 270_000, 300_000, 330_000)]
    insights.write(output, "tier_outcomes", TODAY, rows)
    service.load(str(output))
    assert {row.delay_ms for row in loaded("tier_outcomes") if row.queue == "jittered"} == {60_000, 300_000}


def test_a_named_ladder_with_too_few_data_shows_the_reason(sqlite, output):
    few = {"queue": "default", "ladder_ms": [1_000], "enough_data": False, "reason": insights.TOO_FEW, "episodes": 37}
    insights.write(output, "ladder_advice", TODAY, [])
    insights.write(output, "what_if", TODAY, [few])
    assert insights.TOO_FEW[1:] in shown_of(output)


def test_an_output_with_nothing_but_a_curve_of_nothing_is_shown(sqlite, tmp_path):
    for table in insights.SCHEMAS:
        insights.write(tmp_path, table, TODAY, [])
    insights.report(tmp_path, TODAY)
    page = shown_of(tmp_path)
    assert "No task has been retried" in page
    assert "No incident" in page


# -- errors ----------------------------------------------------------------------------------------------------------


def test_an_empty_place_has_no_finished_run(sqlite, tmp_path):
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(OutputError, match=r"no run has been published there.*rmq_delay_insights"):
            service.load(str(place))


def test_a_run_of_one_day_is_shown_with_the_incidents_of_the_days_before(sqlite, output):
    insights.report(output, TODAY, 1, advice_from=str(TODAY - timedelta(days=29)))
    run = service.load(str(output))
    assert (run.first_day, run.since) == (TODAY, TODAY - timedelta(days=6))
    page = shown()
    assert f"Tiers and incidents cover all days since {run.since}" in page
    assert f"Curves and advice use data since {TODAY - timedelta(days=29)}" in page


def test_a_later_run_of_an_old_day_takes_nothing_back(sqlite, output):
    old, late = TODAY - timedelta(days=4), "99990101T000000Z-late"
    insights.write(output, "recovery_curve", old, insights.curve("task", "x", insights.TASKS[0]), run=late)
    insights.write(output, "incidents", old, [], run=late)
    insights.report(output, old, run=late)
    run = service.load(str(output))
    assert (run.first_day, run.last_day) == (TODAY - timedelta(days=6), TODAY)
    assert len(loaded("recovery_curve")) == 6
    assert "x" not in [row.name for row in loaded("recovery_curve")]
    assert len(loaded("incidents")) == 1, "what the late run changed is loaded"


def test_a_later_run_of_days_that_came_without_failures_is_the_newest(sqlite, output):
    tomorrow = TODAY + timedelta(days=1)
    insights.write(output, "hourly", tomorrow, insights.hours(tomorrow), run="20260102T031700Z-1b2c3d4e")
    insights.report(output, tomorrow, run="20260102T031700Z-1b2c3d4e")
    run = service.load(str(output))
    assert (run.first_day, run.last_day) == (tomorrow, tomorrow)
    assert loaded("recovery_curve") == []


def test_old_days_of_a_table_can_be_deleted(sqlite, output):
    insights.report(output, TODAY)
    shutil.rmtree(insights.folder(output, "incidents") / f"day={TODAY - timedelta(days=4)}")
    service.load(str(output))
    assert len(loaded("incidents")) == 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"run": ', "was not written by the analytics, or was damaged"),
        ('{"run": "../other", "earlier": {}}', "'../other'"),
        ('{"version": 2, "run": "x", "earlier": {}}', "found version 2, but this is version 1"),
        ("[]", "was damaged"),
    ],
)
@pytest.mark.parametrize("name", [CURRENT, manifest_of(insights.RUN)])
def test_a_damaged_or_newer_output_is_an_error(sqlite, output, name, text, error):
    text = text.replace("earlier", "tables") if name != CURRENT else text
    (output / name).write_text(text)
    with pytest.raises(OutputError, match=re.escape(error)) as raised:
        service.load(str(output))
    assert name in str(raised.value)


def test_without_pyarrow_the_error_names_what_to_install(sqlite, output, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for read in (service.load, lambda place: table_files(place, "incidents")):
        with pytest.raises(OutputError, match=r"pip install 'celery-rmq-delay\[history\]'"):
            read(str(output))


def test_an_unknown_scheme_is_an_error_without_credentials(sqlite):
    with pytest.raises(OutputError, match="gopher://shop/insights cannot be opened") as raised:
        service.load("gopher://reader:open-sesame@shop/insights")
    assert "open-sesame" not in str(raised.value)


def written(table, rows, schema=None):
    return lambda output: insights.write(output, table, TODAY, rows, schema)


def truncated(output):
    path = insights.write(output, "tier_outcomes", TODAY, insights.outcomes(1))
    path.write_bytes(path.read_bytes()[:200])


INCIDENTS, HOURLY = insights.SCHEMAS["incidents"], insights.SCHEMAS["hourly"]
WITHOUT_PEAK = INCIDENTS.remove(INCIDENTS.get_field_index("peak_per_minute"))
TEXTS = HOURLY.set(HOURLY.get_field_index("failures"), pa.field("failures", pa.string()))
ENDLESS = {**insights.incidents(TODAY)[0], "ended_at": None}
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a table was deleted": (
        lambda output: shutil.rmtree(insights.folder(output, "ladder_advice")),
        f"The table 'ladder_advice' of {TODAY} is missing",
    ),
    "no first day": (lambda output: insights.report(output, TODAY, first_day=None), "its days are not dates"),
    "no last day": (lambda output: insights.report(output, TODAY, last_day="Monday"), "is damaged: its days are not"),
    "a column is missing": (
        written("incidents", [], WITHOUT_PEAK),
        r"'incidents' has no column 'peak_per_minute'.* again, with --from: `py",
    ),
    "a column of another type": (
        written("hourly", [], TEXTS),
        r"Column 'failures' of the table 'hourly' is string .* not a whole number",
    ),
    "a truncated file": (truncated, r"part-0.parquet of the table 'tier_outcomes' cannot be read"),
    "an incident without its end": (
        written("incidents", [ENDLESS]),
        "'ended_at' of the table 'incidents' is null in a row",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_output_is_an_error_and_the_old_insights_stay(sqlite, output, name):
    before, (damage, error) = service.load(str(output)), DAMAGES[name]
    damage(output)
    with pytest.raises(OutputError, match=error):
        service.load(str(output))
    assert InsightRun.objects.get() == before
    assert len(loaded("incidents")) == 2


def test_a_database_error_leaves_the_old_insights(sqlite, output):
    before = service.load(str(output))
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON rmq_delay_insightrun BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    try:
        with pytest.raises(DatabaseError, match="disk full"):
            service.load(str(output))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse")
    assert InsightRun.objects.get() == before
    assert len(loaded("ladder_advice")) == 5


def test_times_and_numbers_of_other_writers_are_understood(sqlite, output):
    schema = insights.SCHEMAS["incidents"]
    kinds = {"started_at": pa.timestamp("ns"), "tasks_touched": pa.int32(), "recovered_share": pa.float32()}
    for name, kind in kinds.items():
        schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
    row = insights.incidents(TODAY)[0]
    rows = [{**row, "started_at": row["started_at"].replace(tzinfo=None), "recovered_share": float("nan")}]
    insights.write(output, "incidents", TODAY, rows, schema)
    service.load(str(output))
    newest = loaded("incidents")[0]
    assert newest.started_at == row["started_at"]
    assert newest.recovered_share is None


@corpus("value", [None, float("nan"), float("inf"), 1e300])
def test_a_column_may_be_null_and_a_number_without_meaning(database, tmp_path, value):
    names = {"scope": "task", "kind": "give_up"}
    for table, schema in insights.SCHEMAS.items():
        row = {each.name: value for each in schema if pa.types.is_floating(each.type)}
        row |= {each.name: datetime.now(timezone.utc) for each in schema if pa.types.is_timestamp(each.type)}
        insights.write(tmp_path, table, TODAY, [{**row, **names}] * 2, schema)
    insights.report(tmp_path, TODAY)
    run = service.load(str(tmp_path))
    assert {table: len(rows) for table, rows in run.rows.items()} == {
        **dict.fromkeys(TABLES, 2), "recovery_curve": 1, "tier_outcomes": 1, "hourly": 1,
    }  # fmt: skip
    json.dumps(run.rows, allow_nan=False)
    shown(f"?{value}")


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_loads_a_finished_output(sqlite, output):
    assert f"to {TODAY} from" in manage("insights", "--load-only", "--output", str(output))
    with override_settings(RMQ_DELAY={"INSIGHTS_URL": str(output)}):
        assert f" from {output}" in manage("insights", "--load-only")


@corpus(
    "settings, place",
    [
        ({"HISTORY_URL": "/srv/history/"}, "/srv/history-insights"),
        ({"HISTORY_URL": "s3://shop/history?region=eu-1"}, "s3://shop/history-insights?region=eu-1"),
        ({"HISTORY_URL": "/srv/history", "INSIGHTS_URL": "gs://shop/insights"}, "gs://shop/insights"),
    ],
)
def test_insights_are_beside_the_history_unless_the_settings_name_another_place(settings, place):
    with override_settings(RMQ_DELAY=settings):
        assert service.output_url() == place


def test_credentials_are_not_in_the_list_of_processes_nor_in_the_output(sqlite, tmp_path, monkeypatch):
    pytest.importorskip("pyspark", reason="without Spark nothing is started")
    child = tmp_path / "python"
    child.write_text('#!/bin/sh\necho "$@"\necho "$RMQ_DELAY_HISTORY_URL to $RMQ_DELAY_INSIGHTS_URL"\nexit 2\n')
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    of_run = ("--from", "2026-01-31", "--conf", "a=b", "--ladder", "payments=30s,5m", "--ladder", "mails=1s")
    urls = ("--input", "s3://reader:open-sesame@shop/history", "--output", "s3://writer:shut-sesame@shop/i?region=eu-1")
    shown = StringIO()
    with pytest.raises(CommandError) as raised:
        call_command("rmq_delay_insights", *of_run, *urls, stdout=shown)
    options, passed = shown.getvalue().splitlines()
    text = "--from=2026-01-31 --conf=a=b --ladder=payments=30s,5m --ladder=mails=1s"
    assert options == f"-m celery_rmq_delay.analytics run {text}"
    assert passed.startswith("s3://shop/history to s3://")
    assert "sesame" not in f"{passed}{raised.value}"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "use --output"),
        (("--load-only", "--output", "/tmp/x", "--ladder", "a=1s", "--conf", "b=c"), "--conf, --ladder cannot be used"),
        (("--output", "/tmp/x"), "use --input"),
        (("--load-only", "--output", "/tmp/x", "--master", "local"), "--master cannot be used with --load-only"),
        (("--from", "yesterday"), "argument --from: found 'yesterday'; write a date, such as 2026-01-31"),
        (("--to", "2026-02-30"), "argument --to: found '2026-02-30'; write a date, such as 2026-01-31"),
    ],
)
def test_options_that_make_no_sense_are_errors(sqlite, options, error):
    with pytest.raises(CommandError, match=error):
        manage("insights", *options)


def test_a_run_that_fails_reports_its_last_lines_and_loads_nothing(sqlite, output, tmp_path):
    service.load(str(output))
    lines: list[str] = []
    code = "print('reading'); raise SystemExit('the history is empty')"
    with pytest.raises(OutputError, match=r"exited with 1, and nothing was loaded(.|\n)*the history is empty"):
        service._run([sys.executable, "-c", code], lines.append, {})
    assert "reading" in lines
    assert InsightRun.objects.count() == 1


def test_a_command_that_is_ended_ends_the_analytics_too():
    code = (
        "import sys\n"
        "from celery_rmq_delay.contrib.django.services.insight_runs import _run\n"
        "from celery_rmq_delay.stopping import exit_at_once, handling\n"
        "child = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "with handling(exit_at_once):\n"
        "    _run([sys.executable, '-c', child], lambda line: print(line, flush=True), {})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", SETUP + code], stdout=subprocess.PIPE, text=True)
    with process:
        child = psutil.Process(int(process.stdout.readline()))  # type: ignore[union-attr]
        process.terminate()
        assert process.wait(timeout=SECONDS) == 143
    assert not child.is_running()


def test_the_web_process_imports_neither_spark_nor_pyarrow():
    code = (
        "import celery_rmq_delay.contrib.django.admin, celery_rmq_delay.contrib.django.services.insight_runs\n"
        "found = {'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", SETUP + code], check=True, timeout=SECONDS)


def test_the_interval_of_a_share_is_wilsons():
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=5e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.161), abs=5e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(800, 1000, 10) == wilson(8, 10)
    assert wilson(8, 10, 5_000) == wilson(8, 10)


def test_the_address_of_the_insights_is_checked(sqlite):
    with override_settings(RMQ_DELAY={"INSIGHTS_URL": 7}), pytest.raises(SettingsError, match="INSIGHTS_URL"):
        conf()
