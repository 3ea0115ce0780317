"""The days of a run: computed days, days to read, and days of the advice."""

from datetime import date, datetime, timedelta, timezone

import pytest

from celery_rmq_delay.analytics.days import Days
from celery_rmq_delay.analytics.run.planning import Run, planned, waiting_in
from celery_rmq_delay.exceptions import AnalyticsError

DAY = date(2026, 3, 2)
NOW = datetime(2026, 3, 12, 12, tzinfo=timezone.utc)
#: The last of them is in the future.
PRESENT = [DAY + timedelta(days=number) for number in (0, 2, 30)]


def plan(**asked):
    days = {name: DAY + timedelta(days=asked.pop(name)) for name in ("first", "last") if name in asked}
    return planned(PRESENT, Run(input="", output="", now=NOW, **days, **asked))


def days(**asked):
    found = plan(**asked)
    return "none" if found is None else str(found.days)


def test_all_days_by_now_are_computed_unless_some_are_named():
    assert days() == "2026-03-02 to 2026-03-04"
    assert days(last=0) == "2026-03-02"
    assert days(first=5) == "none"
    assert days(last=-5) == "none"
    assert days(first=5, last=6) == "2026-03-07 to 2026-03-08"
    with pytest.raises(AnalyticsError, match="The first day must not be after the last"):
        days(first=0, last=-1)


def test_the_days_after_the_last_are_read_that_depend_on_it_and_for_the_newest_all_later_days():
    closed, newest, named = plan(last=1), plan(), plan(first=2, last=2)
    assert closed is not None
    assert (str(closed.read), closed.is_newest) == ("2026-02-23 to 2026-03-07", False)
    assert newest is not None
    assert (newest.read, newest.is_newest) == (Days(DAY - timedelta(days=7), date.max), True)
    assert named is not None
    assert named.is_newest


def test_advice_uses_the_last_days_even_if_the_run_computes_others():
    one, all_of_them, few = plan(first=2, last=2), plan(), plan(advice_days=2)
    assert one is not None
    assert all_of_them is not None
    assert few is not None
    assert str(one.advice) == str(all_of_them.advice) == "2026-02-03 to 2026-03-04"
    assert str(one.earlier(one.advice)) == "2026-02-03 to 2026-03-03"
    assert str(all_of_them.earlier(all_of_them.advice)) == "2026-02-03 to 2026-03-01"
    assert (str(few.advice), few.earlier(few.advice)) == ("2026-03-03 to 2026-03-04", None)
    # Tasks that still wait failed in the last days that one run reads.
    assert str(one.waiting) == str(all_of_them.waiting) == "2026-02-25 to 2026-03-04"
    assert str(few.waiting) == "2026-03-03 to 2026-03-04"


def test_no_day_is_earlier_than_the_minimal_date():
    first = planned(PRESENT, Run(input="", output="", now=NOW, first=date(1, 1, 3)))
    assert first is not None
    assert first.read.first == date.min


def test_tasks_that_still_wait_are_read_from_the_last_week():
    assert str(waiting_in(Days(date(2026, 1, 1), date(2026, 3, 12)))) == "2026-03-05 to 2026-03-12"
    assert str(waiting_in(Days(date(2026, 3, 11), date(2026, 3, 12)))) == "2026-03-11 to 2026-03-12"


def test_incidents_are_renewed_on_the_days_around_that_have_failures():
    one = planned(PRESENT, Run(input="", output="", now=NOW, first=DAY, last=DAY))
    assert one is not None
    assert str(one.around) == "2026-02-26 to 2026-03-06"
    assert (str(one.earlier(one.around)), str(one.later(one.around))) == (
        "2026-02-26 to 2026-03-01",
        "2026-03-03 to 2026-03-06",
    )
    near = [DAY + timedelta(days=number) for number in range(-3, 4)]
    assert str(one.renewed(near)) == "2026-03-01 to 2026-03-05"
    assert str(one.renewed([DAY, DAY + timedelta(days=2)])) == "2026-03-02"
    assert one.later(one.days) is None
