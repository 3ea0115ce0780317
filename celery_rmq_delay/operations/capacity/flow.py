"""How many messages wait in each tier of a ladder: Little's law, and what an outage adds. No I/O.

Little's law: the average number in a system is the arrival rate times the time in the system. It holds for every
single tier: a message stays for the tier's delay, and a message that has failed k times arrives in tier k.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ...durations import format_ms
from ...exceptions import SettingsError
from ...ladders import Ladder
from ...topology.exact.base import units


@dataclass(frozen=True)
class TierFlow:
    """One tier. ``parked`` in a steady state; ``parked_outage`` at the end of the outage, None without one."""

    tier_index: int
    delay_ms: int
    arrivals: float
    parked: float
    parked_outage: float | None


@dataclass(frozen=True)
class LevelFlow:
    """One binary level of exact delays, in a steady state."""

    level: int
    ttl_ms: int
    arrivals: float
    parked: float


@dataclass(frozen=True)
class Flow:
    """Messages per second in a steady state, and the effect of an outage of ``outage_ms``."""

    tiers: tuple[TierFlow, ...]
    rate: float
    exhausted: float
    outage_ms: int
    exhausted_in_outage: float
    attempts_in_outage: float

    @property
    def retries(self) -> float:
        """Messages that are parked per second, over all tiers."""
        return sum(tier.arrivals for tier in self.tiers)

    @property
    def attempts(self) -> float:
        """Executions per second."""
        return self.rate + self.retries

    @property
    def parked(self) -> float:
        """Messages that wait in a steady state."""
        return sum(tier.parked for tier in self.tiers)

    @property
    def parked_outage(self) -> float:
        """Messages that wait at the end of the outage, which is the peak; `parked` without an outage."""
        return sum(tier.parked if tier.parked_outage is None else tier.parked_outage for tier in self.tiers)

    @property
    def peak_factor(self) -> float | None:
        """Messages at the end of the outage divided by those in a steady state; None if those are 0."""
        return self.parked_outage / self.parked if self.parked else None


def flow(rate: float, failures: Sequence[float], ladder: Ladder, outage_ms: int = 0) -> Flow:
    """Return the flow through a ladder for ``rate`` first attempts per second.

    ``failures``: the share of attempts that fail; one for all attempts, or one for each, of which the last one applies
    to all later ones. ``outage_ms``: all attempts fail for so long, after a steady state. Attempts take no time. With
    jitter the messages are spread evenly over the lanes. Raises `SettingsError` if the last tier grows without a limit.
    """
    entering = _entering(rate, failures, ladder)
    lanes = list(zip(*(ladder.lane_ttls(tier_index) for tier_index in range(1, len(ladder) + 1)), strict=True))
    outages = [_Outage(rate, entering, ttls, outage_ms, ladder.repeat_last) for ttls in lanes]
    tiers = []
    for number, delay in enumerate(ladder.tiers_ms, 1):
        wait = _mean(ttls[number - 1] for ttls in lanes) / 1000
        outage = _mean(lane.parked(number) for lane in outages) if outage_ms else None
        tiers.append(TierFlow(number, delay, entering[number - 1], entering[number - 1] * wait, outage))
    return Flow(
        tiers=tuple(tiers),
        rate=rate,
        exhausted=entering[-1],
        outage_ms=outage_ms,
        exhausted_in_outage=_mean(lane.exhausted() for lane in outages) if outage_ms else 0.0,
        attempts_in_outage=_mean(lane.attempts() for lane in outages) if outage_ms else 0.0,
    )


def level_flow(rate: float, delay_ms: int, unit_ms: int, levels: int) -> tuple[LevelFlow, ...]:
    """Return the levels that ``rate`` messages per second with a delay pass, the longest first.

    The delay is rounded up to units; each bit that is set in it is a level that holds the message. Raises
    `SettingsError` for a delay that ``levels`` cannot hold.
    """
    count = units(delay_ms, unit_ms) if rate else 0
    if count.bit_length() > levels:
        longest = format_ms((2**levels - 1) * unit_ms)
        raise SettingsError(
            "countdown", format_ms(delay_ms), f"{levels} levels of {format_ms(unit_ms)} hold {longest}."
        )
    passed = [number for number in reversed(range(levels)) if count >> number & 1]
    ttls = [(number, unit_ms * 2**number) for number in passed]
    return tuple(LevelFlow(number, ttl, rate, rate * ttl / 1000) for number, ttl in ttls)


def _entering(rate: float, failures: Sequence[float], ladder: Ladder) -> list[float]:
    """Return the rates into tier 1, tier 2, ... and the exhausted queue in a steady state."""
    attempts = max(len(ladder) + 1, len(failures))
    share = [failures[min(attempt, len(failures) - 1)] for attempt in range(attempts)]
    failed = [rate * passed for passed in accumulate(share, lambda left, right: left * right)]
    if not ladder.repeat_last:
        return failed[: len(ladder) + 1]
    if share[-1] == 1 and failed[-1]:
        hint = (
            "With repeat_last a task that always fails is retried without a limit: its last tier is unbounded. Use a "
            "lower share for the later attempts, such as 0.02,0.5, or --outage for a time in which all attempts fail."
        )
        raise SettingsError("failure rate", ",".join(f"{each:g}" for each in failures), hint)
    endless = sum(failed[len(ladder) - 1 :]) + (failed[-1] * share[-1] / (1 - share[-1]) if failed[-1] else 0.0)
    return [*failed[: len(ladder) - 1], endless, 0.0]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


class _Outage:
    """One lane of a ladder during an outage, which begins at time 0. Times in ms, rates per second.

    A message that enters tier k at a time >= 0 has passed the tiers below, each after its delay, and has failed in all
    of them since the outage began. Counted back, it entered tier m before the outage began, at the steady rate of tier
    m. So the rate is a step function, whose steps are at the sums of the delays below k, and whose highest step is the
    rate of first attempts. More messages arrive than leave until the outage ends, and fewer from then on: the end is
    the peak.
    """

    def __init__(self, rate: float, entering: Sequence[float], ttls: Sequence[int], outage: int, endless: bool) -> None:
        self.rate, self.entering, self.ttls, self.end = rate, entering, ttls, outage
        self.last = len(ttls) if endless else None

    def parked(self, tier_index: int) -> float:
        """Messages in ``tier_index`` at the end. A last tier that repeats keeps its old messages and all new ones."""
        ttl = self.ttls[tier_index - 1]
        if tier_index == self.last:
            return self._amount(tier_index, 0, self.end) + self.entering[tier_index - 1] * ttl / 1000
        return self._amount(tier_index, self.end - ttl, self.end)

    def exhausted(self) -> float:
        """Messages that reached the end of the ladder during the outage."""
        return 0.0 if self.last else self._amount(len(self.ttls) + 1, 0, self.end)

    def attempts(self) -> float:
        """Attempts per second just before the end."""
        back = (self._returning(tier_index) for tier_index in range(1, len(self.ttls) + 1))
        return self.rate + sum(back)

    def _returning(self, tier_index: int) -> float:
        ttl = self.ttls[tier_index - 1]
        if tier_index != self.last:
            return self._rate(tier_index, self.end - ttl - 1)
        # A repeating message returns every ttl: those that arrived a whole number of ttls ago, and the old ones.
        times = self._steps(tier_index, 0, self.end)
        last = self.end - 1
        rounds = ((left, (last - left) // ttl - max((last - right) // ttl, 0)) for left, right in pairwise(times))
        return self.entering[tier_index - 1] + sum(self._rate(tier_index, left) * count for left, count in rounds)

    def _amount(self, tier_index: int, begin: int, end: int) -> float:
        """Messages that enter ``tier_index`` between two times."""
        steps = pairwise(self._steps(tier_index, begin, end))
        return sum(self._rate(tier_index, left) * (right - left) / 1000 for left, right in steps)

    def _steps(self, tier_index: int, begin: int, end: int) -> list[int]:
        """Return the times from ``begin`` to ``end`` between which the rate into ``tier_index`` stays the same."""
        below = accumulate(reversed(self.ttls[: tier_index - 1]), initial=0)
        return sorted({begin, end, *(time for time in below if begin < time < end)})

    def _rate(self, tier_index: int, time: int) -> float:
        """Messages per second into ``tier_index`` from ``time`` on; for a last tier that repeats, those from below."""
        while tier_index and time >= 0:
            tier_index -= 1
            time -= self.ttls[tier_index - 1] if tier_index else 0
        return self.entering[tier_index - 1] if tier_index else self.rate
