"""Ladder arithmetic."""

import itertools
import json
import statistics
import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.durations import MAX_TTL_MS
from celery_rmq_delay.ladders import Ladder, lane_of
from tests.support.corpus import corpus

tiers = st.lists(st.integers(1, MAX_TTL_MS // 2), min_size=1, max_size=8).map(tuple)
types = st.sampled_from(["classic", "quorum"])
ladders = st.builds(
    Ladder, tiers, st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.999]), st.integers(1, 64), st.booleans(), types
)


@given(ladders)
def test_every_lane_is_within_the_jitter_and_lane_0_is_the_middle(ladder):
    for tier_index, tier in enumerate(ladder.tiers_ms, 1):
        ttls = ladder.lane_ttls(tier_index)
        assert len(ttls) == (ladder.lanes if ladder.jitter and ladder.lanes > 1 else 1)
        for ttl in ttls:
            assert ttl >= 1
            assert abs(ttl - tier) <= tier * ladder.jitter + 1
        if len(ttls) % 2:
            assert ttls[0] == tier
        else:  # the nearest above
            assert ttls[0] == min(ttl for ttl in ttls if ttl >= tier)
        if len(ttls) > 1:
            assert max(ttls) - min(ttls) >= tier * ladder.jitter * 2 - 2, "the lanes span the whole jitter"


@given(ladders)
def test_lanes_are_evenly_spread_around_the_delay(ladder):
    for tier_index, tier in enumerate(ladder.tiers_ms, 1):
        ttls = sorted(ladder.lane_ttls(tier_index))
        assert statistics.fmean(ttls) == pytest.approx(tier, abs=1)
        steps = [second - first for first, second in itertools.pairwise(ttls)]
        assert not steps or max(steps) - min(steps) <= 2


@given(ladders)
def test_ladders_survive_json_with_their_id(ladder):
    back = Ladder.from_json(json.loads(json.dumps(ladder.to_json())))
    assert back == ladder
    assert back.id == ladder.id


@given(ladders, ladders)
def test_different_ladders_have_different_ids(first, second):
    assert (first.id == second.id) == (first == second)
    assert len(first.id) == 8


def test_the_id_of_a_ladder_never_changes():
    """The id is in the broker: a different one would make an upgrade a change of ladders, as new objects do."""
    assert Ladder((10_000, 60_000)).id == "5a2a8453"


@given(ladders, st.integers(0, 100))
def test_the_tier_after_some_retries_is_the_next_one_up_to_the_last(ladder, retries):
    tier_index = ladder.tier_after(retries)
    assert tier_index == retries + 1 if retries < len(ladder) else tier_index == len(ladder)


@given(ladders, st.one_of(st.integers(), st.text(), st.none(), st.floats(), st.binary(), st.lists(st.integers())))
def test_any_lane_header_has_a_ttl_of_its_tier(ladder, lane):
    for tier_index in range(1, len(ladder) + 1):
        ttls = ladder.lane_ttls(tier_index)
        known = type(lane) is int and 0 <= lane < len(ttls)
        assert ladder.ttl(tier_index, lane) == (ttls[lane] if known else ttls[0])


def test_the_ladder_is_the_retry_budget():
    assert Ladder((1, 2, 3)).retries == 3
    assert Ladder((1, 2, 3), repeat_last=True).retries is None


@given(st.text(), st.integers(1, 64))
def test_a_task_has_the_same_lane_every_time(task_id, lanes):
    assert 0 <= lane_of(task_id, lanes) < lanes
    assert lane_of(task_id, lanes) == lane_of(task_id, lanes)


def test_the_lane_of_a_task_never_changes():
    assert [lane_of(f"task-{number}", 5) for number in range(6)] == [3, 1, 3, 3, 0, 0]


@corpus("lanes", [2, 5, 8])
def test_tasks_are_even_over_the_lanes(lanes):
    tasks = 20_000
    found = Counter(lane_of(str(uuid.UUID(int=number * 7919)), lanes) for number in range(tasks))
    assert set(found) == set(range(lanes))
    assert all(abs(count - tasks / lanes) < 0.1 * tasks / lanes for count in found.values())
