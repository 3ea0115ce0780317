"""Bursts of failures and their incidents, from counts by minute."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from celery_rmq_delay.analytics.tables.bursts import MINUTES, SOURCE, Bursts, spans, usual_rates
from celery_rmq_delay.analytics.tables.merging import Incident, of_day, over_midnight
from tests.support.corpus import corpus

DAY = 20_000
START = DAY * MINUTES
DEFAULT = Bursts()
Rows = list[dict[str, Any]]


def failing(
    minutes, per_minute, exception = "Down", task = "pay", queue = "payments",
    fingerprint = ""
):  # fmt: skip
    """Return failed first attempts in these minutes of the day."""
    names = dict(zip(SOURCE, (queue, task, exception, fingerprint), strict=True))
    return [{**names, "minute": START + minute, "failed": per_minute, "ok": 0} for minute in minutes]


def succeeding(minutes, per_minute, task="pay", queue="payments"):
    return [{**row, "failed": 0, "ok": per_minute} for row in failing(minutes, 0, "", task, queue)]


def at_random(mean, seed, **more):
    """Return failures of both days, Poisson distributed."""
    counts = np.random.default_rng(seed).poisson(mean, 2 * MINUTES)
    return [row for minute, count in enumerate(counts) if count for row in failing([minute - MINUTES], count, **more)]


def found(rows, bursts=DEFAULT):
    return over_midnight(of_day(pd.DataFrame(rows), START, bursts), bursts)


def times(incidents):
    return [(each.first - START, each.last - START) for each in incidents]


def test_an_outage_is_found_behind_another_queue_that_fails_sixty_times_a_minute():
    busy = at_random(60, 1, task="fetch", queue="feeds", exception="Timeout")
    (one,) = found([*busy, *failing(range(300, 360), 10)])
    assert times([one]) == [(300, 359)]
    assert one.scope == {("payments", "pay", "Down")}
    assert round(one.excess) == 600


@corpus("seed", range(5))
def test_usual_failures_are_no_incident_however_many_they_are(seed):
    assert not found([*at_random(60, seed), *at_random(0.3, seed + 10, task="mail")])


def test_a_traffic_peak_is_no_incident_and_the_same_failures_without_it_are_one():
    day = range(-MINUTES, MINUTES)
    usual = [*failing(day, 2), *succeeding(day, 38)]
    peak = [*failing(range(100, 130), 8), *succeeding(range(100, 130), 160)]
    assert not found([*usual, *peak])
    (one,) = found([*usual, *failing(range(100, 130), 8)])
    assert times([one]) == [(100, 129)]
    assert one.attempts and one.failed / one.attempts == pytest.approx(10 / 48)


def test_tasks_with_their_usual_failures_are_not_listed():
    others = [row for number in range(8) for row in at_random(0.5, number, task=f"other{number}", exception="Down")]
    (one,) = found([*others, *failing(range(600, 660), 5)])
    assert {task for _, task, _ in one.scope} == {"pay"}


def test_an_outage_of_many_tasks_with_few_failures_each_is_one_incident():
    rows = [
        row
        for number in range(30)
        for row in failing(range(400 + number % 9, 460, 9), 1, task=f"task{number}", queue=f"queue{number % 4}")
    ]
    (one,) = found(rows)
    assert len({task for _, task, _ in one.scope}) == 30
    assert times([one]) == [(400, 459)]


def test_a_new_fingerprint_of_a_usual_exception_is_found():
    usual = at_random(12, 3, exception="ValueError", fingerprint="old")
    (one,) = found([*usual, *failing(range(700, 730), 4, "ValueError", fingerprint="new")])
    assert times([one]) == [(700, 729)]


def test_a_task_that_runs_for_some_minutes_of_an_outage_belongs_to_it():
    day = range(-MINUTES, MINUTES)
    down, hourly = range(400, 520), [minute for minute in range(MINUTES) if minute % 60 < 3]
    rows = [*failing(down, 5), *succeeding([minute for minute in day if minute not in down], 5)]
    rows += failing([minute for minute in hourly if minute in down], 30, task="report", queue="batch")
    rows += succeeding([minute for minute in hourly if minute not in down], 30, task="report", queue="batch")
    (one,) = found(rows)
    assert {task for _, task, _ in one.scope} == {"pay", "report"}


def test_a_short_outage_during_a_long_one_of_the_same_exception_is_another_incident():
    day = range(-MINUTES, MINUTES)
    rows = [*failing(range(400, 580), 5), *succeeding(day, 5), *succeeding(day, 9, task="mail", queue="mails")]
    assert times(found([*rows, *failing(range(450, 460), 9, task="mail", queue="mails")])) == [(400, 579), (450, 459)]


def test_bursts_of_one_series_are_one_incident_up_to_the_gap():
    assert times(found([*failing(range(100, 110), 9), *failing(range(119, 130), 9)])) == [(100, 129)]
    assert times(found([*failing(range(100, 110), 9), *failing(range(125, 136), 9)])) == [(125, 135), (100, 109)]


def test_too_few_failures_are_no_incident():
    assert not found(failing(range(100, 119), 1))
    assert found(failing(range(100, 120), 1))


def test_the_order_of_rows_does_not_matter():
    rows = [
        *at_random(1, 5),
        *at_random(3, 6, task="mail"),
        *failing(range(10, 40), 9),
        *failing(range(12, 50), 7, "Full"),
    ]
    mixed = [rows[index] for index in np.random.default_rng(7).permutation(len(rows))]
    assert found(rows) == found(mixed)


def test_a_day_without_data_before_is_no_evidence_that_nothing_failed():
    assert not found([*failing(range(MINUTES), 5), *succeeding(range(MINUTES), 5)])
    assert not found(failing(range(MINUTES), 5))
    before = succeeding(range(-MINUTES, 0), 10)
    (one,) = found([*before, *failing(range(MINUTES), 5), *succeeding(range(MINUTES), 5)])
    assert times([one]) == [(0, MINUTES - 1)]


def test_usual_failures_of_the_first_minute_are_before_the_begin():
    usual = failing(range(-MINUTES, MINUTES), 10)
    (one,) = found([*usual, *failing([500], 20), *failing(range(501, 520), 80)])
    assert (times([one]), one.skip) == ([(500, 519)], 7)


def test_a_usual_rate_leaves_out_blocks_with_many_more_failures():
    failed = np.array([[3.0, 2.0, 4.0, 90.0, 80.0, 3.0], [0.0, 0.0, 1.0, 0.0, 2.0, 0.0]])
    assert usual_rates(failed, np.full(failed.shape, 30.0)).tolist() == pytest.approx([12 / 120, 3 / 180])
    assert usual_rates(failed, np.zeros(failed.shape)).tolist() == [0.0, 0.0]


@corpus("seed", range(8))
def test_a_batch_that_runs_once_a_day_and_fails_as_always_is_no_incident(seed):
    random = np.random.default_rng(seed)
    rows = []
    for day in (-1, 0):
        batch = range(day * MINUTES + 120, day * MINUTES + 145)
        for minute in batch:
            attempts = int(random.poisson(40))
            failures = int(random.binomial(attempts, 0.3))
            rows += failing([minute], failures) + succeeding([minute], attempts - failures)
        rows += succeeding(range(day * MINUTES + 600, day * MINUTES + 620), 1)
    assert not found(rows)


def test_a_usual_rate_of_a_block_with_most_of_the_traffic_is_its_own():
    rates = usual_rates(np.array([[300.0, 0.0, 0.0]]), np.array([[1000.0, 5.0, 5.0]]))
    assert rates.tolist() == pytest.approx([300 / 1010])


def test_the_evidence_of_a_span_is_its_log_likelihood_ratio():
    failed = np.array([0.0, 0.0, 12.0, 9.0, 0.0])
    (one,) = spans(failed, np.full(5, 2.0), DEFAULT)
    expected = sum(count * math.log(3) - 2 * (2 + 0.1) for count in (12, 9))
    assert (one.first, one.last, one.evidence) == (2, 3, pytest.approx(expected))


def part(day, first, last, failed=30.0, task="pay"):
    """Return an incident in these minutes of a day."""
    start = (DAY + day) * MINUTES
    scope = frozenset({("payments", task, "Down")})
    return Incident(start + first, start + last, failed, 0, scope, failed, 0.0, None)


def test_parts_of_two_days_that_are_too_small_alone_can_be_one_incident():
    (one,) = over_midnight([part(0, 1430, 1438, 9), part(1, 2, 20, 14)], DEFAULT)
    assert (one.day, one.failed, one.last - one.first) == (DAY, 23, 30)
    assert not over_midnight([part(0, 1430, 1438, 9), part(1, 12, 20, 14)], DEFAULT), "too far apart"
    assert not over_midnight([part(0, 1430, 1438, 9), part(1, 2, 20, 14, "mail")], DEFAULT), "nothing in common"


def test_an_incident_that_lasts_for_a_whole_day_is_cut_at_midnight():
    days = [part(0, 900, 1439), part(1, 0, 1439), part(2, 0, 300)]
    assert len(over_midnight(days, DEFAULT)) == 3
    assert len(over_midnight([*days[:1], part(1, 0, 1_000)], DEFAULT)) == 1


def long_outage(begins, hours):
    """Return the incidents of an outage of a task with 5 attempts a minute, of which usually 5 % fail."""
    random = np.random.default_rng(hours)
    share = lambda minute: 0.9 if begins <= minute < begins + 60 * hours else 0.05  # noqa: E731
    failed = {minute: int(random.binomial(5, share(minute))) for minute in range(-2 * MINUTES, 4 * MINUTES)}
    rows = [
        row
        for minute, count in failed.items()
        for row in [*failing([minute] * bool(count), count), *succeeding([minute], 5 - count)]
    ]
    days = [of_day(pd.DataFrame(rows), START + day * MINUTES, DEFAULT) for day in range(4)]
    return over_midnight([each for day in days for each in day], DEFAULT)


@corpus("hours", [20, 26, 30, 36, 40])
def test_an_outage_of_more_than_a_day_ends_when_it_does_and_not_at_midnight(hours):
    (one,) = long_outage(7 * 60, hours)
    assert abs(one.first - START - 7 * 60) <= 5
    assert abs(one.last - START - (7 + hours) * 60) <= 5


def test_an_outage_of_several_days_is_listed_until_its_second_midnight():
    parts = sorted(times(long_outage(20 * 60, 70)))
    assert [(abs(first - (20 * 60, MINUTES)[at]) <= 5, last) for at, (first, last) in enumerate(parts[:2])] == [
        (True, MINUTES - 1),
        (True, 2 * MINUTES - 1),
    ]


def test_what_is_joined_depends_on_the_days_before_and_after_only():
    days = [part(0, 900, 1439), part(1, 0, 100), part(1, 1300, 1439), part(2, 0, 300), part(3, 5, 90)]
    joined = {each.day: each for each in over_midnight(days, DEFAULT)}
    for day in range(4):
        near = [each for each in days if abs(each.day - DAY - day) <= 1]
        assert {each.day: each for each in over_midnight(near, DEFAULT)}.get(DAY + day) == joined.get(DAY + day)


def test_few_failures_at_midnight_are_no_incident_and_no_error():
    rows = [*failing([0, 3, 1_437], 4), *at_random(2, 9, task="mail")]
    assert not found(rows)
