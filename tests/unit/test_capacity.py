"""The capacity estimate: the arithmetic of parked messages, compared with simulations, and the results."""

import heapq
import itertools
import random
from collections import deque
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.objects import Objects
from celery_rmq_delay.cli.capacity import estimate_json
from celery_rmq_delay.exceptions import SettingsError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import Names
from celery_rmq_delay.operations.capacity import CONSTANTS, VERSIONS, Workload, estimate, flow, level_flow
from celery_rmq_delay.topology.counts import Counts, ladder_counts, levels_counts
from celery_rmq_delay.topology.ladder import LadderPlan
from tests.support.corpus import corpus

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
LADDER = Ladder((10 * SECOND, MINUTE, 10 * MINUTE))
LOAD = Workload(rate_per_s=100, failures=(0.1,), size_bytes=1024, ladder=LADDER)

rates = st.floats(0, 1e6, allow_subnormal=False)
shares = st.lists(st.floats(0, 0.5), min_size=1, max_size=3)
tiers = st.lists(st.integers(1, 20), min_size=1, max_size=4)


class Simulation:
    """A simulation of messages as a flow, second by second, without formulas; ``tiers`` in seconds."""

    def __init__(self, rate, failures, tiers, *, repeat_last):
        self.rate, self.failures, self.repeat_last = rate, failures, repeat_last
        self.lines = [deque([0.0] * tier) for tier in tiers]
        self.attempts = self.exhausted = 0.0

    def step(self, *, all_fail):
        attempting = [self.rate, *(line.popleft() for line in self.lines)]
        self.attempts = sum(attempting)
        entering = [0.0] * (len(self.lines) + 1)
        for number, amount in enumerate(attempting):
            share = 1.0 if all_fail else self.failures[min(number, len(self.failures) - 1)]
            tier_index = min(number, len(self.lines) - 1) if self.repeat_last else number
            entering[tier_index] += amount * share
        for line, amount in zip(self.lines, entering, strict=False):
            line.append(amount)
        self.exhausted += entering[-1]

    @property
    def parked(self):
        return [sum(line) for line in self.lines]


@given(rate=rates, failures=shares, tiers=tiers, outage=st.integers(0, 60), repeat_last=st.booleans())
def test_the_arithmetic_agrees_with_a_simulation(rate, failures, tiers, outage, repeat_last):
    failures = failures[: len(tiers) + 1]
    simulation = Simulation(rate, failures, tiers, repeat_last=repeat_last)
    for _ in range(sum(tiers) + (40 * tiers[-1] if repeat_last else 0)):
        simulation.step(all_fail=False)
    ladder = Ladder(tuple(tier * SECOND for tier in tiers), repeat_last=repeat_last)
    found = flow(rate, failures, ladder, outage * SECOND)
    near = pytest.approx
    assert [tier.parked for tier in found.tiers] == near(simulation.parked, abs=1e-6)
    simulation.exhausted = 0.0
    for _ in range(outage):
        simulation.step(all_fail=True)
    assert bool(found.outage) == bool(outage)
    if found.outage:
        assert [tier.parked_outage for tier in found.tiers] == near(simulation.parked, abs=1e-6)
        assert found.outage.attempts_per_s == near(simulation.attempts, abs=1e-6)
        assert found.outage.exhausted == near(simulation.exhausted, abs=1e-6)
    peak = found.outage.parked if found.outage else found.parked
    assert peak == near(sum(simulation.parked), abs=1e-6)
    assert peak >= found.parked - 1e-6
    for _ in range(sum(tiers)):  # the end of the outage is the peak
        simulation.step(all_fail=False)
        assert sum(simulation.parked) <= peak * (1 + 1e-9) + 1e-6


@corpus("seed", range(3))
def test_single_tasks_that_fail_by_chance_obey_littles_law(seed):
    rate, share, ladder, seconds = 50.0, 0.3, Ladder((2_000, 5_000, 11_000)), 4_000.0
    chance = random.Random(seed)
    waited = [0.0] * len(ladder)
    arrivals = itertools.accumulate(iter(lambda: chance.expovariate(rate), -1))
    times = itertools.takewhile(lambda time: time < seconds, arrivals)
    attempts = [(time, 0) for time in times]
    heapq.heapify(attempts)
    exhausted = 0
    while attempts:
        time, retries = heapq.heappop(attempts)
        if chance.random() >= share:
            continue
        if retries == len(ladder):
            exhausted += 1
            continue
        delay = ladder.tiers_ms[retries] / 1000
        waited[retries] += max(0.0, min(delay, seconds - time))
        heapq.heappush(attempts, (time + delay, retries + 1))
    found = flow(rate, (share,), ladder)
    assert [each / seconds for each in waited] == pytest.approx([tier.parked for tier in found.tiers], rel=0.1)
    assert exhausted / seconds == pytest.approx(found.exhausted_per_s, rel=0.1)


@given(rate=rates, more=rates, failures=shares, tiers=tiers, outage=st.integers(0, 100))
def test_more_tasks_never_park_less(rate, more, failures, tiers, outage):
    ladder = Ladder(tuple(tier * SECOND for tier in tiers))
    low, high = (asdict(flow(each, failures, ladder, outage * SECOND)) for each in (rate, rate + more))
    for name in ("parked", "attempts_per_s", "exhausted_per_s"):
        assert low[name] <= high[name] * (1 + 1e-9)
    for name in ("parked", "attempts_per_s", "exhausted") if outage else ():
        assert low["outage"][name] <= high["outage"][name] * (1 + 1e-9)


@given(rate=rates, tiers=tiers, repeat_last=st.booleans())
def test_without_failures_nothing_is_parked_or_exhausted(rate, tiers, repeat_last):
    found = flow(rate, (0,), Ladder(tuple(tiers), repeat_last=repeat_last))
    assert (found.parked, found.exhausted_per_s, found.retries_per_s) == (0, 0, 0)
    assert found.attempts_per_s == rate
    after = flow(rate, (0,), Ladder(tuple(tiers), repeat_last=repeat_last), MINUTE).outage
    assert after
    assert after.peak_factor is None


def test_when_all_fail_each_tier_holds_the_failures_of_its_delay():
    found = flow(100, (1.0,), LADDER)
    assert [tier.parked for tier in found.tiers] == [1_000, 6_000, 60_000]
    assert found.exhausted_per_s == 100
    outage = flow(100, (0.0,), LADDER, 5 * MINUTE).outage
    assert outage
    assert outage.parked == 100 * 300


def test_a_last_tier_that_repeats_has_to_end_some_time():
    endless = replace(LADDER, repeat_last=True)
    with pytest.raises(SettingsError, match="unbounded"):
        flow(100, (1.0,), endless)
    with pytest.raises(SettingsError, match="unbounded"):
        flow(100, (0.5, 0.5, 0.5, 0.5, 1.0), endless)
    found = flow(100, (0.5,), endless)
    assert (found.tiers[-1].arrivals_per_s, found.exhausted_per_s) == (25, 0)
    # the third attempt fails always, the fourth by half, later ones never
    assert flow(100, (1, 1, 1, 0.5, 0), endless).tiers[-1].arrivals_per_s == 150
    assert flow(0, (1.0,), endless).parked == 0


def test_a_share_for_each_attempt_holds_for_that_attempt():
    found = flow(100, (0.5, 0.1, 1), LADDER)
    assert [tier.arrivals_per_s for tier in found.tiers] == pytest.approx([50, 5, 5])
    assert found.exhausted_per_s == pytest.approx(5)


@given(outage=st.integers(0, 100), jitter=st.floats(0.01, 0.5), lanes=st.integers(2, 7))
def test_jitter_spreads_parked_messages_and_keeps_their_number(outage, jitter, lanes):
    plain = flow(100, (0.2,), LADDER, outage * SECOND)
    spread = flow(100, (0.2,), Ladder(LADDER.tiers_ms, jitter, lanes), outage * SECOND)
    assert spread.parked == pytest.approx(plain.parked, rel=1e-3)
    if outage <= 10 * (1 - jitter):  # no task of the outage has come back in any lane
        peaks = [sum(tier.peak for tier in each.tiers) for each in (plain, spread)]
        assert peaks[1] == pytest.approx(peaks[0], rel=0.2)


@corpus("queue_type", ["classic", "quorum"])
@corpus("ladder", [LADDER, Ladder((1_000,), 0.2, 3), replace(LADDER, repeat_last=True)])
def test_objects_are_counted_on_the_plans(ladder, queue_type):
    everything = Objects()
    for number in range(4):
        plan = LadderPlan(Names("rmq_delay"), f"q{number}", queue_type, "rmq_delay.exhausted", ladder)
        everything += plan.objects() + Objects(queues=(plan.record_queue(), plan.exhausted_queue()))
    moving = Counts(0, 4, 4 * 5)  # of each queue one exchange and five bindings are in no plan
    assert ladder_counts(ladder, queue_type, 4) == Counts.of(everything) + moving


@corpus("origins", [1, 5])
def test_levels_are_counted_on_their_topology(origins):
    # A level is an exchange, a queue and two bindings, and one to its mark; one exchange delivers. The ladders have all
    # other objects.
    assert levels_counts(28, 1000, "classic", origins) == Counts(28, 28 + 2, 3 * 28 + origins)
    assert levels_counts(0, 1000, "classic", origins) == Counts(0, 0, 0)


@given(rate=st.floats(1, 1e6), delay=st.integers(1, 10**9), unit=st.sampled_from([100, 1000, 60_000]))
def test_levels_hold_the_calls_made_during_the_delay(rate, delay, unit):
    levels = level_flow(rate, delay, unit, 28)
    waited = sum(level.ttl_ms for level in levels)
    assert 0 <= waited - delay < unit
    assert sum(level.parked for level in levels) == pytest.approx(rate * waited / 1000)
    assert [level.level for level in levels] == sorted({level.level for level in levels}, reverse=True)


def test_a_delay_that_the_levels_cannot_hold_is_refused():
    assert level_flow(0, 10**12, 1000, 3) == ()
    with pytest.raises(SettingsError, match="3 levels of 1s hold 7s"):
        level_flow(1, 8_000, 1000, 3)


def test_each_level_on_the_way_is_one_more_message_to_take_in():
    plain = estimate(LOAD)
    hour = estimate(replace(LOAD, countdown_rate_per_s=10, countdown_ms=HOUR))
    assert (plain.delayed, hour.delayed) == (0, 36_000)
    assert hour.moved_per_s - plain.moved_per_s == pytest.approx(10 * len(hour.levels))
    assert f"{3600:b}".count("1") == len(hour.levels) == 4
    assert hour.node_disk_bytes > plain.node_disk_bytes


@corpus(
    "changes, words",
    [
        ({"countdown_rate_per_s": 101.0, "countdown_ms": 1}, "part of the total rate of 100/s"),
        ({"countdown_rate_per_s": 1.0}, "need both"),
        ({"countdown_ms": 1}, "need both"),
        ({"countdown_rate_per_s": 1.0, "countdown_ms": 1, "levels": 0}, "levels"),
        ({"queue_type": "quorum", "nodes": 2}, "its own node"),
        ({"version": "2.8"}, r"3\.10, 4\.0, 4\.3"),
    ],
)
def test_a_load_whose_options_contradict_each_other_is_refused(changes, words):
    with pytest.raises(SettingsError, match=words):
        estimate(replace(LOAD, **changes))  # type: ignore[arg-type]


def test_every_constant_has_a_source_and_a_value_for_every_version():
    nothing = {("classic_kept", "4.0"), ("classic_kept", "4.3"), ("classic_stored", "3.10")}
    assert len({each.name for each in CONSTANTS}) == len(CONSTANTS) > 15
    for each in CONSTANTS:
        assert each.source.startswith(("measured", "RabbitMQ docs, "))
        assert all(each.of(version) > 0 for version in VERSIONS if (each.name, version) not in nothing)


@corpus("version", VERSIONS)
@corpus("queue_type", ["classic", "quorum"])
@corpus("size", [100, 10_000])
def test_every_part_of_a_node_names_constants_that_are_listed(version, queue_type, size):
    found = estimate(replace(LOAD, version=version, queue_type=queue_type, size_bytes=size))
    known = {each.name for each in CONSTANTS}
    for item in (*found.memory, *found.disk):
        assert item.constants
        assert set(item.constants) <= known
        assert item.size_bytes >= 0


@given(rate=st.floats(1, 1e4), queue_type=st.sampled_from(["classic", "quorum"]), queues=st.integers(1, 50))
def test_a_larger_load_never_needs_less(rate, queue_type, queues):
    load = replace(LOAD, rate_per_s=rate, queue_type=queue_type, queues=queues)
    small, large = estimate(load), estimate(replace(load, rate_per_s=2 * rate, queues=queues + 1, outage_ms=MINUTE))
    assert small.node_memory_bytes < large.node_memory_bytes
    assert small.node_disk_bytes < large.node_disk_bytes
    assert small.moved_per_s < large.moved_per_s


def test_a_retry_is_taken_in_twice_and_a_replica_writes_it_again():
    found = estimate(replace(LOAD, ladder=Ladder((1_000,)), failures=(0.5, 0)))
    assert found.moved_per_s == 100 + 2 * 50
    quorum = estimate(replace(LOAD, ladder=Ladder((1_000,)), failures=(0.5, 0), queue_type="quorum"))
    assert quorum.written_bytes_per_s == 3 * found.written_bytes_per_s > 3 * 200 * 1024


def test_more_nodes_than_replicas_share_the_messages():
    three, six = (estimate(replace(LOAD, queue_type="quorum", nodes=nodes, outage_ms=MINUTE)) for nodes in (3, 6))
    assert six.disk[0].size_bytes == pytest.approx(three.disk[0].size_bytes / 2)
    assert six.node_memory_bytes < three.node_memory_bytes


def warnings(load):
    found: list[str] = estimate_json(estimate(load))["warnings"]
    return found


@corpus(
    "changes, words",
    [
        ({"node_memory_bytes": 10**8}, "Memory: a node would use"),
        ({"queue_type": "quorum", "rate_per_s": 1e5, "outage_ms": HOUR}, "advises against more than 5,000,000"),
        ({"outage_ms": HOUR}, "Outage: the ladder lasts 11m10s, and the outage 1h"),
        ({"queues": 3000}, "queues: declaring them takes minutes"),
        ({"queue_type": "quorum", "replicas": 4}, "use an odd number"),
    ],
)
def test_estimates_that_need_attention_have_warnings(changes, words):
    assert warnings(LOAD) == []
    assert any(words in warning for warning in warnings(replace(LOAD, **changes)))  # type: ignore[arg-type]


def test_lanes_and_origin_queues_share_a_backlog():
    load = replace(LOAD, queue_type="quorum", rate_per_s=1e4, failures=(1,), ladder=Ladder((HOUR,)))
    assert warnings(load)
    assert not warnings(replace(load, queues=10))
    assert not warnings(replace(load, ladder=Ladder((HOUR,), 0.1, 10)))
