"""Search for the ladder that costs least within limits. Pure, and exhaustive: every candidate is considered.

The cost of a ladder is its retries per failure (`Figures.attempts`), plus a weight times its mean time to recovery as a
part of today's. Its limits: the share that it recovers, the mean and the percentiles of its time to recovery.

A limit must hold in the estimate, and in most resampled histories: there, both the limit and the ladder's figures
differ. It must hold if only time counts and if the number of attempts does (`by_attempt`). It must hold if failures
between the known times end evenly over time (`Shares.prudent`); the cost is that of the estimate. Among ladders that
cost the same, the one that recovers more is best, then the one with the shorter 95th percentile, the shorter median,
fewer tiers, and shorter delays in their order: the result is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations_with_replacement, compress, islice

import numpy as np

from ...history.tables import TIMES
from .by_attempt import ByAttempt, View, by_time
from .intervals import Flags, Floats, Ints
from .ladders import Figures, Today, ends, expected, retry_times
from .lateness import Lateness
from .options import Options
from .shares import Shares

#: Shares, retries and seconds that differ by less are the same.
_ALIKE = 1e-9

#: The limits must hold in this part of the resampled histories. If today's times differ there, too, in this part: they
#: are times of retries, and where a share is close to a percentile, it is another retry in every other history.
_SURE = (0.9, 0.6)

#: With fewer outages of equal size than this, resampled histories vary less than other histories do: more must hold.
_FEW, _SURE_OF_FEW = 30, (0.975, 0.8)

#: Ladders that are tried in the resampled histories: at a time, and in total at most.
_AT_ONCE, _MOST_TRIED = 250, 50_000

Ladder = tuple[int, ...]


@dataclass(frozen=True)
class Limits:
    """The least share recovered, the most seconds of each of `TIMES`: a number, or one by history, (history, 1)."""

    recovery: Floats
    seconds: Mapping[str, Floats]

    @classmethod
    def of(cls, today: Figures, options: Options) -> Limits:
        """Return the limits of ``options``, else today's with the tolerance; no time limit where too few recover."""
        longest = {"median_s": options.max_median_s, "p95_s": options.max_p95_s}
        too_few = np.asarray(today.recovery) < (options.min_recovery or 0.0) - _ALIKE
        seconds = {}
        for name in TIMES:
            found = np.asarray(getattr(today, name)) * (1 + options.time_tolerance)
            given = longest.get(name)
            unset = np.where(np.isnan(found) | too_few, np.inf, found)
            seconds[name] = unset if given is None else np.full_like(found, given)
        recovery = np.asarray(today.recovery) - options.recovery_tolerance
        return cls(recovery if options.min_recovery is None else np.full_like(recovery, options.min_recovery), seconds)

    def stated(self) -> Limits:
        """Return the same limits, with the times of row 0 in all rows."""
        return Limits(self.recovery, {name: most[:1] for name, most in self.seconds.items()})

    def kept_by(self, found: Figures) -> Flags:
        """Return which of the ladders meet the limits."""
        kept = found.recovery >= self.recovery - _ALIKE
        for name, most in self.seconds.items():
            kept = kept & (getattr(found, name) <= most + _ALIKE)
        return np.asarray(kept)


@dataclass(frozen=True)
class Search:
    """What to search for, in an estimate (row 0) and in resampled histories (the other rows).

    ``likely``, ``prudent``: (row, cell) as in `Shares`. ``today``: the ladder in milliseconds; ``current``: its
    figures, (row, 1). ``least_s``: when the last retry must end, or later, at each point of the lateness; of ladders
    of 1, 2, ... tiers, or of all. ``latest_s``: when it must have ended (median), as the history does not show what
    happens later. ``sure``: the parts of the resampled histories in which the limits must hold. ``attempts``: the same
    rows, if the number of attempts counts. The limits must hold in all of its `views`.
    """

    likely: Floats
    prudent: Floats
    today: Ladder
    late: Lateness
    least_s: Floats | float
    latest_s: float
    options: Options
    sure: tuple[float, float] = _SURE
    attempts: ByAttempt = field(default_factory=ByAttempt)
    current: Figures = field(init=False)
    #: The limits of a ladder in each row, by the views.
    every_limits: tuple[Limits, ...] = field(init=False)

    def __post_init__(self) -> None:
        todays = [self.figures(np.array([self.today]), view) for view in self.attempts.views]
        object.__setattr__(self, "current", self.figures(np.array([self.today]), self.attempts.likely))
        object.__setattr__(self, "every_limits", tuple(Limits.of(each, self.options) for each in todays))

    @classmethod
    def of(
        cls, estimate: Shares, attempts: ByAttempt, today: Today, least_s: Floats | float, options: Options
    ) -> Search:
        """Return the search for a ladder that ends in the time that the history shows, or hardly later than today's."""
        ends_s = retry_times(np.array(today.ladder_ms), today.late)[-1]
        latest_s = max(options.grid.times[estimate.horizon], ends_s * (1 + options.time_tolerance))
        curves = estimate.likely, estimate.prudent
        sure = _SURE_OF_FEW if estimate.equal_clusters < _FEW else _SURE
        return cls(*curves, today.ladder_ms, today.late, least_s, float(latest_s), options, sure, attempts)

    @property
    def limits(self) -> Limits:
        """The limits of a ladder in each row, if only time counts."""
        return self.every_limits[0]

    @property
    def is_within(self) -> bool:
        """Whether today's ladder meets the limits: it breaks only those that the user has set."""
        pairs = zip(self.every_limits, self.attempts.views, strict=True)
        todays = np.array([self.today])
        return all(bool(limits.kept_by(self.figures(todays, view))[0, 0]) for limits, view in pairs)

    def figures(self, ladders: Ints, view: View | None = None, *, is_prudent: bool = False) -> Figures:
        """Return the figures (row, ladder) of ladders of one length: (ladder, tier); by the likely view."""
        curve = self.prudent if is_prudent else self.likely
        return expected(curve, ladders, self.late, self.options.grid, view or self.attempts.likely)

    def compared(self, ladders: Ints, view: View | None = None, *, is_prudent: bool = False) -> Figures:
        """Return the figures of ladders, with a mean time to recovery that can be compared with today's.

        A ladder that recovers fewer failures has a shorter mean for that alone, as the longest ones are not in it. So
        today's mean over as many failures stands for today's: a mean is longer by the same factor as over the failures
        that both recover. The mean of a ladder that recovers more includes the longer failures.
        """
        found = self.figures(ladders, view, is_prudent=is_prudent)
        ways = self.late, self.options.grid, view or self.attempts.likely
        today = expected(self.likely, np.array([self.today]), *ways).mean_s
        of_both = expected(self.likely, np.array([self.today]), *ways, found.recovery).mean_s
        longer = np.divide(today, of_both, out=np.ones_like(of_both), where=of_both > 0)
        return replace(found, mean_s=found.mean_s * longer)

    def keeps_limits(self, ladders: Ints) -> Flags:
        """Return (row, ladder) whether ladders of one length meet the limits."""
        pairs = zip(self.every_limits, self._prudent(ladders), strict=True)
        return np.asarray(np.all([limits.kept_by(found) for limits, found in pairs], axis=0))

    def _prudent(self, ladders: Ints) -> list[Figures]:
        """Return the figures for the limits, by the views."""
        return [self.compared(ladders, view, is_prudent=True) for view in self.attempts.views]

    def cost(self, found: Figures) -> Floats:
        """Return the costs of ladders, given their figures as `compared`."""
        today = self.current.mean_s
        longer = np.divide(found.mean_s, today, out=np.ones_like(found.mean_s), where=today > 0)
        return np.asarray(found.attempts + self.options.delay_weight * np.where(np.isnan(longer), np.inf, longer))

    def best(self) -> Ladder | None:
        """Return the ladder that costs least within the limits; None: there is none."""
        return next(self.within_limits(), None)

    def within_limits(self) -> Iterator[Ladder]:
        """Yield the ladders within the limits, the one that costs least first."""
        one = slice(1)
        estimate = replace(self, likely=self.likely[one], prudent=self.prudent[one], attempts=self.attempts.rows(one))
        ranked = estimate._ranked()
        while some := list(islice(ranked, _AT_ONCE)):
            yield from compress(some, self._are_sure(some))

    def saving(self, ladder: Ladder) -> Floats:
        """Return (row) the part of today's cost that a ladder saves."""
        today, found = self.cost(self.current), self.cost(self.compared(np.array([ladder])))
        return np.asarray(1 - found / today)[:, 0]

    def _ranked(self) -> Iterator[Ladder]:
        """Yield the ladders that meet the limits in every row, the best in row 0 first."""
        ranked: list[Ladder] = []
        criteria = []
        for tiers in range(1, self.options.max_tiers + 1):
            ladders = _ladders(self.options.delays_ms, tiers)
            is_late_enough = (ends(ladders, self.late) >= self._least_s(tiers)).all(axis=0)
            ladders = ladders[is_late_enough & (retry_times(ladders, self.late)[:, -1] <= self.latest_s)]
            # The means take longer to compare.
            found = replace(self.figures(ladders, by_time, is_prudent=True), mean_s=np.zeros((len(self.likely), 1)))
            ladders = ladders[self.limits.kept_by(found).all(axis=0)]
            ladders = ladders[self.keeps_limits(ladders).all(axis=0)]
            each = self.compared(ladders)
            order = [self.cost(each)[0], -each.recovery[0], each.p95_s[0], each.median_s[0]]
            criteria.append(np.stack([*order, np.full(len(ladders), tiers)]).round(9))
            ranked += map(tuple, ladders.tolist())
        # Candidates are ordered by their tiers and delays, and the sort is stable.
        yield from (ranked[at] for at in np.lexsort(np.concatenate(criteria, axis=1)[::-1])[:_MOST_TRIED])

    def _least_s(self, tiers: int) -> Floats:
        """Return the time (point, 1) by which the last retry of a ladder with ``tiers`` tiers must end."""
        least_s = np.asarray(self.least_s)
        return np.reshape(least_s[tiers - 1] if least_s.ndim > 1 else least_s, (-1, 1))

    def _are_sure(self, ladders: list[Ladder]) -> Flags:
        """Return which of the ladders meet the limits in enough resampled histories."""
        sure = np.ones(len(ladders), dtype=bool)
        if len(self.likely) == 1:
            return sure
        for tiers in {len(each) for each in ladders}:
            at = [index for index, each in enumerate(ladders) if len(each) == tiers]
            found = self._prudent(np.array([ladders[index] for index in at]))
            for limits, each in zip(self.every_limits, found, strict=True):
                sure[at] &= limits.stated().kept_by(each)[1:].mean(axis=0) >= self.sure[0]
                sure[at] &= limits.kept_by(each)[1:].mean(axis=0) >= self.sure[1]
        return sure


def _ladders(delays_ms: tuple[int, ...], tiers: int) -> Ints:
    """Return every ladder of this many tiers whose delays never decrease: (ladder, tier)."""
    flat = list(chain.from_iterable(combinations_with_replacement(delays_ms, tiers)))
    return np.array(flat, dtype=np.int64).reshape(-1, tiers)
