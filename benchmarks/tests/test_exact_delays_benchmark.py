"""Evaluation of the measurements of exact delays."""

import pytest

from benchmarks.delays import (
    CELERY_NATIVE,
    CONTENDERS,
    LEVELS,
    LEVELS_QUORUM,
    Drain,
    Publishing,
    hops_by_delay,
    lateness,
)
from benchmarks.delays_report import Results, markdown, tables, turns_ratio
from benchmarks.exact_delays import chosen


def test_contenders_are_chosen_by_parts_of_their_names():
    assert [each.name for each in chosen("levels, quorum".replace(", ", ","))] == [
        "levels",
        "levels, quorum",
        "Celery native, classic levels",
    ]
    assert [each.name for each in chosen("hold,NATIVE")] == ["hold", "Celery native", "Celery native, classic levels"]
    assert chosen(None) == list(CONTENDERS)
    with pytest.raises(SystemExit, match="No contender matches nothing"):
        chosen("nothing")


def test_lateness_counts_from_the_asked_time_and_from_the_one_rounded_up():
    calls = [(100.0, 1.25), (101.0, 3.0), (102.0, 2.5)]
    found = lateness(calls, {0: 102.0625, 1: 104.5}, rounds=True)
    assert (found.count, found.missing) == (3, 1)
    assert found.asked == (812.5, 812.5, 812.5)
    assert found.rounded == (500.0, 500.0, 500.0)
    assert lateness(calls, {0: 102.0625}, rounds=False).rounded == (812.5, 812.5, 812.5)
    assert lateness(calls, {}, rounds=True).asked == (None, None, None)


def test_hops_are_the_queues_in_which_a_message_expired():
    def passed(*queues):
        return [{"queue": queue, "reason": "expired", "count": 1} for queue in queues]

    again = [{"queue": "a", "reason": "expired", "count": 2}, {"queue": "work", "reason": "rejected", "count": 9}]
    taken = [(3, passed("a")), (3, passed("a", "b")), (5, again), (7, [])]
    assert hops_by_delay(taken) == {3: 2, 5: 2}


def test_a_ratio_is_the_median_over_turns_that_followed_each_other():
    assert turns_ratio([2.0, 20.0, 3.0], [1.0, 10.0, 3.0]) == 2.0


def _results():
    ours, quorum, celery_native = (
        next(each for each in CONTENDERS if each.name == name) for name in (LEVELS, LEVELS_QUORUM, CELERY_NATIVE)
    )
    return Results(
        contenders=[ours, quorum, celery_native],
        publishing={
            ours: Publishing(wall=[0.001, 0.002], cpu=[0.0005, 0.0005], broker=[0.0, 0.0]),
            celery_native: Publishing(wall=[0.002, 0.004], cpu=[0.0004, 0.0004], broker=[0.001, 0.001]),
        },
        drains={ours: [Drain(20_000, 2.0, 10_000.0)]},
        hops={ours: {1: 1, 3: 2}, celery_native: {1: 1, 3: 2, 7: 3}},
        errors=["plugin: left out"],
    )


def test_ratios_compare_levels_with_celerys_native_delayed_delivery():
    assert _results().ratios() == [
        (f"published/s: {LEVELS} / {CELERY_NATIVE}", 2.0, ">= 1"),
        (f"publisher's CPU: {LEVELS} / {CELERY_NATIVE}", 1.25, "<= 1"),
        (f"hops, the worst delay: {LEVELS} / {CELERY_NATIVE}", 1.0, "<= 1"),
    ]


def test_tables_have_a_cell_for_every_column_and_report_failures():
    results = _results()
    for _title, head, rows in tables(results):
        assert all(len(row) == len(head) for row in rows)
    text = markdown(results, {"RabbitMQ": "4.3.6"}, ["A note."])
    assert "| levels | 667 (500-1,000) | 500 | - |" in text
    assert "| levels | 20,000 | 2.00 | 10,000 | 1.50 | 2 |" in text
    assert "While parked" not in text
    assert text.endswith("plugin: left out\n")
