"""The parts of the pages that need no database: tracebacks, timelines, bars, times."""

import traceback
from datetime import datetime, timedelta, timezone

from celery_rmq_delay.contrib.django.admin import operation_text, text
from celery_rmq_delay.contrib.django.admin.attempts import parts, timeline
from celery_rmq_delay.contrib.django.admin.charts import bars, chart, round_up
from celery_rmq_delay.contrib.django.models import Attempt, Operation
from celery_rmq_delay.contrib.django.queries import Hour
from tests.support.corpus import corpus
from tests.support.django.markup import faults
from tests.support.django.seed import TRACEBACK
from tests.support.effort import assert_linear

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def test_frames_of_libraries_are_distinguished_from_the_applications():
    found = [(part.kind, part.frames) for part in parts(TRACEBACK)]
    assert found == [("text", 0), ("library", 1), ("application", 2), ("library", 2), ("text", 0)]


def test_no_line_of_a_traceback_is_lost():
    try:
        try:
            raise ValueError("first\nsecond line")
        except ValueError as error:
            raise KeyError("x") from error
    except KeyError:
        written = traceback.format_exc()
    assert "\n".join(part.text for part in parts(written)) == written.rstrip("\n")
    assert [part.frames for part in parts(written) if part.kind == "application"] == [1, 1]


@corpus("hostile", ["", "\n" * 9, '  File "', '  File "x", line 1, in ' + "y" * 9_000, "x" * 20_000])
def test_text_that_is_no_traceback_is_text(hostile):
    assert [part.kind for part in parts(hostile)] in ([], ["text"])


def test_a_long_traceback_is_parsed_quickly():
    assert_linear(lambda size: parts('  File "' * size), 50_000)
    assert_linear(lambda size: parts('  File "/a.py", line 1, in x\n    y\n' * size), 20_000)


def attempt(number, at, delay=None, generation=0):
    return Attempt(attempt=number, generation=generation, occurred_at=at, runtime_ms=2_000, delay_ms=delay)


def test_the_actual_delay_is_from_the_end_of_an_attempt_to_the_start_of_the_next():
    steps = timeline(
        [
            attempt(0, NOON, 60_000),
            attempt(1, NOON + timedelta(seconds=62.5)),
            attempt(0, NOON + timedelta(hours=1), 1_000, generation=1),
        ]
    )
    assert [step.waited_ms for step in steps] == [60_500, None, None]
    assert [step.late_ms for step in steps] == [500, None, None]
    assert steps[0].started_at == NOON - timedelta(seconds=2)


def test_one_bar_is_visible_among_thousands_and_zero_has_no_bar():
    hours = [Hour(NOON, 9_000, 1, 0), Hour(NOON + timedelta(hours=1), 0, 0, 5)]
    drawn = chart(hours)
    found = list(bars({"parked": [9_000, 0], "exhausted": [1, 0]}, ["12", "13"], 10_000, left=0.12, width=0.36))
    tall, small, *none = [bar.height for bar in found]
    assert tall > 80 > small >= 2
    assert none == [0, 0]
    assert [key.value for key in drawn.keys] == ["9,000", "1"]
    assert [label for _y, label in drawn.lines] == ["10,000", "5,000"]
    assert all(bar.y >= 0 and bar.y + bar.height <= drawn.height + 0.01 for bar in found)


@corpus("number, up", [(0, 1), (1, 1), (2, 2), (3, 5), (11, 20), (99, 100), (10**15 + 1, 2 * 10**15)])
def test_the_scale_ends_at_a_round_number(number, up):
    assert round_up(number) == up


@corpus(
    "seconds, words",
    [(0, "now"), (3, "in 3 s"), (-3, "3 s ago"), (200, "in 3 min"), (-7_300, "2 h ago"), (-180_000, "2 days ago")],
)
def test_times_are_shown_in_everyday_words(seconds, words):
    shown = text.moment(NOON + timedelta(seconds=seconds), now=NOON)
    assert f">{words}</time>" in shown
    assert 'datetime="2026-' in shown
    assert 'title="2026-' in shown


def test_delays_are_shown_exactly():
    assert [text.delay(ms) for ms in (None, 0, 90_000, 3_600_500)] == ["-", "0 s", "1 min 30 s", "1 h 500 ms"]


def test_state_is_text_and_icon():
    for state in ("PARKED", "EXHAUSTED", "UNKNOWN", "made up"):
        shown = text.state_badge(state)
        assert faults(shown) == []
        assert "<svg" in shown
        assert len(shown.split("</svg>")[1]) > len("</span>") + 3


def test_an_operation_shows_its_filters_in_words():
    operation = Operation(
        details={
            "filters": {"state": "EXHAUSTED", "group": "1", "other": "x"},
            "list": "exhaustedtask",
            "redacted": True,
        }
    )
    assert list(operation_text.in_words(operation)) == [
        ("Filters", "state: Exhausted\nfailure group: 1\nother: x"),
        ("List", "exhausted tasks"),
        ("Redacted", "yes"),
    ]


def test_the_changes_of_an_edit_are_readable():
    operation = Operation(details={"diff": [{"path": "args.0", "after": "ü"}], "groups": [1, 2], "note": ""})
    words = dict(operation_text.in_words(operation))
    assert words["Groups"] == "1, 2"
    assert '"after": "ü"' in words["Diff"]
    assert "Note" not in words


def test_a_long_error_is_cut_in_the_column_and_not_in_its_title():
    shown = text.clamped("e" * 400)
    assert f'title="{"e" * 400}"' in shown
    assert "e" * text.IN_LIST not in shown.split(">", 1)[1]
