"""The drawings of the insights and the texts of their figures, without a database."""

import re
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.contrib.django.admin import text
from celery_rmq_delay.contrib.django.admin.advice import advice, error_advice, give_up_snippet, snippet
from celery_rmq_delay.contrib.django.admin.charts import MOST_BARS, bursts_chart, slots
from celery_rmq_delay.contrib.django.admin.curves import Retries, curve_chart
from celery_rmq_delay.contrib.django.models import Row
from celery_rmq_delay.durations import parse_ms
from tests.support.corpus import corpus
from tests.support.django.markup import faults

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
TODAY = Retries("today", "today", [5_000, 30_000, 300_000])
#: A third is over after 10 s, two thirds after 100 s, and the rest never.
POINTS = [(1.0, 0.0, 0.0, 0.1), (10.0, 1 / 3, 0.3, 0.4), (100.0, 2 / 3, 0.6, 0.7), (1_000.0, 2 / 3, 0.6, 0.7)]


def drawn(points, *ladders):
    chart = curve_chart("orders.tasks.charge", points, ladders)
    assert chart is not None
    return chart


def numbers(path):
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", path)]


def test_retries_are_drawn_at_the_sum_of_the_delays_before_them():
    assert TODAY.moments == [5, 35, 335]
    chart = drawn(POINTS, TODAY)
    titles = re.findall(r"<title>(.*?)</title>", chart.drawing)
    assert titles == [f"today: retry {n} after {at}" for n, at in ((1, "5s"), (2, "35s"), (3, "5m35s"))]
    places = [float(x) for x in re.findall(r'<line class="rmq-tier rmq-tier-today" x1="([\d.]+)"', chart.drawing)]
    assert places == sorted(places)
    assert [mark.label for mark in chart.above[0][1]] == ["5s", "30s", "5m"]


def test_the_table_has_the_share_at_every_retry():
    rows = re.findall(
        r'<tr><th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>',
        drawn(POINTS, TODAY).table.rows,
    )
    by_time = {time: (share, retry) for time, share, _interval, retry in rows}
    assert by_time["5s"] == ("23\N{NO-BREAK SPACE}%", "today, 1")
    assert by_time["35s"] == ("51\N{NO-BREAK SPACE}%", "today, 2")
    assert by_time["5m35s"] == ("67\N{NO-BREAK SPACE}%", "today, 3")


def test_shares_between_known_times_are_on_the_line_over_the_logarithm_of_time():
    chart = drawn(POINTS, Retries("today", "today", [31_623]))
    line = numbers(re.search(r'class="rmq-curve" d="(.*?)"', chart.drawing)[1])  # type: ignore[index]
    assert len(line) == len(POINTS), "a line from point to point, without steps"
    row = re.search(r'<th scope="row">32s</th><td>(.*?)</td><td>(.*?)</td>', chart.table.rows)
    assert row
    assert (row[1], row[2]) == ("50\N{NO-BREAK SPACE}%", "45\N{NO-BREAK SPACE}%\N{EN DASH}55\N{NO-BREAK SPACE}%")


def test_the_band_is_a_line_through_both_ends_of_the_intervals():
    chart = drawn(POINTS)
    outline = numbers(re.search(r'class="rmq-band" d="M(.*?)Z"', chart.drawing)[1])  # type: ignore[index]
    assert len(outline) == 2 * len(POINTS)
    assert [x for x, _y in outline[:4]] == [x for x, _y in reversed(outline[4:])]
    assert all(upper < lower for (_x, upper), (_, lower) in zip(outline[:4], reversed(outline[4:]), strict=True))


def test_the_table_states_no_share_before_the_first_and_after_the_last_known_time():
    chart = drawn(POINTS, Retries("today", "today", [500, 500, 2_000_000]))
    found = dict(re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', chart.table.rows))
    assert (found["500ms"], found["33m21s"]) == ("-", "-")
    assert found["1s"] == "0\N{NO-BREAK SPACE}%"


def test_the_description_states_which_share_was_over_at_which_time():
    description = drawn(POINTS).described.replace("\N{NO-BREAK SPACE}", " ")
    assert description == (
        "Of the failures of orders.tasks.charge, 25 % had ended after 10s, 50 % had ended after 1m40s, "
        "67 % ended while observed."
    )


@corpus("points", [[], [(0.0, 0.5, None, None)], [(1.0, None, None, None)]])
def test_nothing_is_drawn_without_data(points):
    assert curve_chart("x", points, [TODAY]) is None


shares = st.floats(0, 1)
curves = st.lists(
    st.tuples(st.floats(1e-3, 1e9), shares, st.none() | shares, st.none() | shares), min_size=1, max_size=50
).map(lambda points: sorted(points, key=lambda point: point[0]))
delays = st.lists(st.integers(1, 10**9), max_size=8)


@given(curves, delays, delays)
def test_the_drawing_stays_in_its_box_with_any_figures(points, today, advised):
    chart = drawn(points, Retries("today", "today", today), Retries("advised", "best", advised))
    for path in re.findall(r' d="M(.*?)Z?"', chart.drawing):
        assert all(0 <= x <= chart.width and 0 <= y <= chart.height for x, y in numbers(path))
    assert chart.drawing.count('class="rmq-tier ') == len(today) + len(advised)
    for marks in (chart.marks, *(row for _series, row in chart.above)):
        places = [mark.x for mark in marks]
        assert places == sorted(places)
        assert all(0 <= x <= 100 for x in places)
    assert len(chart.marks) <= 7
    assert faults(f"<svg>{chart.drawing}</svg><table>{chart.table.rows}</table>") == []


hours = st.dictionaries(st.integers(0, 24 * 90), st.integers(0, 10**9), min_size=1, max_size=60)


def hour(number, failures):
    at = NOON + timedelta(hours=number)
    return Row(hour=at, first_attempts=1, failures=failures, recovered=0, exhausted=0)


@given(hours)
def test_no_failure_is_lost_between_hours_and_bars(counts):
    given_hours = [hour(number, counts[number]) for number in sorted(counts)]
    found, length = slots(given_hours)
    assert sum(slot.failures for slot in found) == sum(counts.values())
    assert len(found) <= MOST_BARS
    assert found[0].start == given_hours[0].hour
    assert found[-1].start + length > given_hours[-1].hour


def incident(begins, lasts):
    at = NOON + begins
    return Row(started_at=at, ended_at=at + lasts, peak_per_minute=1, tasks_touched=1, wasted_ms=0)


def bands(chart):
    """Return place and width of each incident."""
    found = re.findall(r'rmq-bar-incident" x="([\d.]+)" y="0" width="([\d.]+)"', chart.drawing)
    return [(float(x), float(width)) for x, width in found]


def test_incidents_are_drawn_behind_their_hours_and_those_of_other_days_are_left_out():
    minute = timedelta(minutes=1)
    chart = bursts_chart(
        [hour(number, 5) for number in range(10)],
        [incident(90 * minute, minute), incident(9 * 60 * minute, 300 * minute), incident(-600 * minute, minute)],
    )
    assert bands(chart) == [(108.0, 72.0), (648.0, 72.0)]
    assert bursts_chart([], []) is None


def test_incidents_that_touch_are_one_band():
    minute = timedelta(minutes=1)
    spans = [(30, 90), (400, 10), (60, 300), (80, 5)]
    chart = bursts_chart(
        [hour(number, 5) for number in range(10)], [incident(at * minute, lasts * minute) for at, lasts in spans]
    )
    assert bands(chart) == [(36.0, 396.0), (480.0, 72.0)]


@corpus("count, labels", [
        (24, [(0, "12:00"), (16.67, "16:00"), (33.33, "20:00"), (50, "00:00"), (66.67, "04:00"), (83.33, "08:00")]),
        (96, [(12.5, "03-02"), (37.5, "03-03"), (62.5, "03-04"), (87.5, "03-05")]),
        (480, [(2.5, "03-02"), (17.5, "03-05"), (32.5, "03-08"), (47.5, "03-11"), (62.5, "03-14"), (77.5, "03-17"),
               (92.5, "03-20")]),
    ])  # fmt: skip
def test_days_are_marked_at_their_midnight(count, labels):
    chart = bursts_chart([hour(number, 5) for number in range(count)], [])
    assert chart is not None
    assert [(mark.x, mark.label) for mark in chart.marks] == labels


@corpus(
    "seconds, words",
    [(None, "-"), (0, "1ms"), (0.0123, "12ms"), (4.23, "4.2s"), (83.4, "1m23s"), (12_010, "3h20m"), (200_000, "2d8h")],
)
def test_measured_times_are_no_more_exact_than_people_need(seconds, words):
    assert text.rough(seconds) == words


@corpus("part, want", [(None, "-"), (0, "0 %"), (0.001, "< 1 %"), (0.996, "> 99 %"), (1, "100 %")])
def test_partial_shares_are_not_shown_as_none_or_all(part, want):
    assert text.share(part).replace("\N{NO-BREAK SPACE}", " ") == want


def advised(queue, ladder, **more):
    values = {"queue": queue, "task": "", "enough_data": True, "reason": "", "learn": "", "episodes": 500}
    values |= {"recoveries": 0, "current_ms": [], "advised_ms": ladder, "refused_ms": [], "lost": None, "counted": None}
    values |= {"current": {}, "advised": {}, "model": "", "by_attempts_high": None}
    values |= {"backtest_failures": None, "backtest_current": {}, "backtest_advised": {}}
    return Row(**{**values, **more})


def test_the_settings_to_copy_are_python_and_mean_the_advice():
    rows = [
        advised("payments", [30_000, 90_000], current_ms=[5_000]),
        advised("mäil\n\u202e", [1_500]),
        advised("same", [1_000], current_ms=[1_000]),
        advised("few", [1_000], enough_data=False),
        advised("payments", [2_000], task="orders.tasks.charge"),
        advised("payments", [30_000, 90_000], current_ms=[5_000], task="orders.tasks.refund"),
    ]
    settings, _, tasks = snippet(rows).partition("\n# the task")
    found: dict[str, Any] = {}
    exec(settings, found)
    queues = found["CELERY_RMQ_DELAY"]["queues"]
    parsed = {name: [parse_ms(each, "tiers") for each in queue["tiers"]] for name, queue in queues.items()}
    assert parsed == {"payments": [30_000, 90_000], "mäil\n\u202e": [1_500]}
    assert tasks == ' "orders.tasks.charge", in the queue "payments"\n@app.task(base=RetryableTask, tiers=["2s"])'
    assert snippet([]) == ""


def test_advice_that_lacks_data_states_it_and_shows_the_known_figures():
    row = advised("few", [1_000], enough_data=False, reason="not enough data: 3 failures", current_ms=[2_000])
    shown = advice(row)
    assert shown.basis == "500 failures: not enough data: 3 failures"
    assert (shown.today, shown.table) == ("2s", None)
    known = advised("few", [], enough_data=False, current_ms=[2_000], current={"recovery": [0.5, 0.4, 0.6]})
    shown = advice(known)
    assert shown.basis == "500 failures: not enough data"
    assert shown.table
    assert [(row.ladder, row.note, row.cells[0].value) for row in shown.table.rows] == [
        ("2s", "estimated", "50\N{NO-BREAK SPACE}%")
    ]
    assert [cell.value for cell in shown.table.rows[0].cells[1:]] == ["-"] * 8


@corpus("ladder, rows", [([], 1), ([2_000], 1), ([3_000], 2)])
def test_an_advised_ladder_is_shown_beside_todays_if_it_differs(ladder, rows):
    table = advice(advised("x", ladder, current_ms=[2_000], current={"recovery": [1.0, None, None]})).table
    assert table
    assert len(table.rows) == rows


@corpus("lost, advised_ms, stated", [(3, [1_000], True), (0, [1_000], False), (3, [], False)])
def test_recoveries_that_may_be_lost_are_stated_if_a_ladder_is_advised(lost, advised_ms, stated):
    text = "The advised ladder may lose 3 of the 1,700 counted recoveries."
    shown = advice(advised("x", advised_ms, current_ms=[2_000], lost=lost, recoveries=1_700))
    assert shown.lost == (text if stated else "")


def test_a_refused_ladder_is_neither_advised_nor_in_the_settings():
    row = advised("x", [], current_ms=[2_000], refused_ms=[1_000], reason="it failed its backtest", backtest_failures=1)
    shown = advice(row)
    assert (shown.basis, shown.refused) == ("500 failures", "It failed its backtest")
    assert shown.tried == "Backtest: on the last failure, which the advice does not know:"
    assert shown.backtest
    assert [(each.label, each.ladder) for each in shown.backtest.rows] == [("Today", "2s"), ("Not advised", "1s")]
    assert snippet([row]) == ""


def hopeless(task, name, **more):
    values = {"queue": "q", "task": task, "exception_type": name, "kind": "give_up", "failures": 500, "recovered": 0}
    values |= {"share_low": 0.0, "share_high": 0.01, "longest_s": None, "needless_ms": [], "retries": 7}
    return Row(**{**values, "wasted_ms": 1_000, **more})


def test_the_code_to_give_up_names_each_exception_once_per_task_and_is_python():
    rows = [
        hopeless("a.charge", "a.Refused"),
        hopeless("a.charge", "a.Refused", queue="other"),
        hopeless("a.charge", "ValueError"),
        hopeless("b\n@evil", "ValueError"),
        hopeless("a.charge", "a.make.<locals>.Inner"),
        hopeless("a.charge", "a.Refused,); evil("),
        hopeless("a.charge", "class"),
        hopeless("a.charge", "KeyError", kind="fewer_tiers"),
    ]
    assert give_up_snippet(rows).splitlines() == [
        '# the task "a.charge"',
        "@app.task(base=RetryableTask, give_up_on=(a.Refused, ValueError,))",
        '# the task "b\\n@evil"',
        "@app.task(base=RetryableTask, give_up_on=(ValueError,))",
    ]
    assert give_up_snippet([]) == give_up_snippet(rows[4:5]) == ""


@corpus(
    "kind, low, high, stated",
    [
        ("give_up", 0.0, 0.0092, "95 % interval: at most 1.0 % recover"),
        ("give_up", 0.0, 0.00001, "95 % interval: at most 0.1 % recover"),
        ("give_up", None, None, ""),
        ("fewer_tiers", 0.9926, 1.0, "95 % interval: at least 99.2 % recover"),
    ],
)
def test_the_bound_of_a_share_is_rounded_to_the_side_of_caution(kind, low, high, stated):
    row = hopeless("a", "b", kind=kind, share_low=low, share_high=high, needless_ms=[60_000, 3_600_000])
    assert error_advice(row).interval.replace("\N{NO-BREAK SPACE}", " ") == stated
    if kind == "fewer_tiers":
        assert error_advice(row).to_do == "It does not need the tiers 1m, 1h."
