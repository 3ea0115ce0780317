"""Schedules and plans: determined by their seed, complete, and possible."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults import FAULTS
from chaos.plans import plan_of
from chaos.project import ladders
from chaos.schedule import RECOVERY, ScheduleError, schedule
from chaos.strikes import Effect, Fault

DURATION = 1800.0


def nothing(*_: Any) -> Any:
    raise AssertionError("a schedule strikes nothing")


@st.composite
def faults(draw: st.DrawFn) -> list[Fault]:
    """Return faults of a few seconds on three parts."""
    made = []
    for number in range(draw(st.integers(1, 6))):
        least = draw(st.floats(0, 5))
        lasts = (least, least + draw(st.floats(0, 5)))
        touches = draw(st.frozensets(st.sampled_from("abc"), min_size=1, max_size=2))
        made.append(Fault(f"f{number}", nothing, Effect.NONE, lasts, touches, takes=draw(st.floats(0, 10))))
    return made


@given(st.integers(0, 2**32), faults(), st.integers(1, 5))
def test_each_fault_strikes_as_often_as_asked_and_no_part_is_struck_twice_at_once(
    seed: int, faults: list[Fault], each: int
) -> None:
    found = schedule(seed, DURATION, faults, each)
    known = {fault.name: fault for fault in faults}
    assert Counter(strike.fault for strike in found) == {fault.name: each for fault in faults}
    assert found == sorted(found, key=lambda strike: (strike.at, strike.fault))
    for strike in found:
        fault = known[strike.fault]
        assert fault.lasts[0] - 0.001 <= strike.lasts <= fault.lasts[1] + 0.001
        assert 0 <= strike.at <= DURATION - strike.lasts - fault.takes + 0.01
    for one, other in combinations(found, 2):
        if known[one.fault].touches & known[other.fault].touches:
            assert other.at - one.at >= one.lasts + known[one.fault].takes + RECOVERY - 0.01


@given(st.integers(0, 2**32), faults())
def test_the_same_seed_makes_the_same_schedule_and_another_one_another(seed: int, faults: list[Fault]) -> None:
    assert schedule(seed, DURATION, faults, 2) == schedule(seed, DURATION, faults, 2)
    assert schedule(seed, DURATION, faults, 2) != schedule(seed + 1, DURATION, faults, 2)


def test_too_many_strikes_are_refused_with_the_slowest_part() -> None:
    fault = Fault("f", nothing, Effect.NONE, (10.0, 10.0), frozenset({"the broker"}))
    with pytest.raises(ScheduleError, match=r"10 strikes do not fit into 60 s: those on 'the broker' take 140 s"):
        schedule(1, 60, [fault], 10)


def test_ten_strikes_of_each_fault_fit_into_half_an_hour() -> None:
    assert len(schedule(1, DURATION, FAULTS, 10)) == 10 * len(FAULTS)


@given(st.integers(0, 2**32), st.integers(0, 10**6))
def test_a_plan_is_by_seed_and_number_and_possible_on_every_ladder(seed: int, number: int) -> None:
    plan = plan_of(seed, number, 1.0)
    assert plan == plan_of(seed, number, 1.0)
    shortest = min(len(version[plan.queue]["tiers"]) for version in ladders(1.0))
    assert plan.kind == "hopeless" or plan.fails <= shortest
    assert (plan.countdown is not None) == (plan.kind in ("waits", "called_later"))
