"""Merge bursts into incidents: of one day, and over midnight. Pure numpy and pandas.

A burst is sought in ever larger series: one source, one exception of a task, one exception, one task, one queue.
Failures of a burst that is found are removed from the larger series, so that these have a burst of their own only where
it has other causes, or where its failures are too few in each of the smaller series.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from ..estimate.intervals import Floats, Ints
from .bursts import MINUTES, SOURCE, Bursts, Counts, Span, counts_of, spans

_SCOPE = SOURCE[:3]
_LEVELS = (SOURCE, _SCOPE, ("exception_type",), ("task",), ("queue",))

#: The most bursts of a day that are merged, and the most incidents of a day: those with the most excess.
MOST_BURSTS, MOST_INCIDENTS = 500, 200

#: The part of the burst's excess that a source needs to be listed.
_LEAST_PART = 0.01
#: The least product of the parts of two failure rates that are left over the time of both bursts: then they are one
#: incident.
_LEAST_COMMON = 0.5


@dataclass(frozen=True)
class Incident:
    """An incident; minutes since the epoch, both included.

    ``scope``: queues, tasks and exceptions (empty: none). ``failed``: first attempts that failed, ``expected``: the
    usual number, ``attempts``: all first attempts of the tasks, None if they are not known. ``skip``: failures
    of its first minute that came before it began.
    """

    first: int
    last: int
    evidence: float
    skip: int
    scope: frozenset[tuple[str, str, str]]
    failed: float
    expected: float
    attempts: float | None

    @property
    def excess(self) -> float:
        """The failures beyond the expected ones."""
        return self.failed - self.expected

    @property
    def day(self) -> int:
        """Return the day on which it began, in days since the epoch."""
        return self.first // MINUTES


@dataclass(frozen=True)
class _Burst:
    """A burst of its ``own`` sources; ``excess``: their failures beyond the expected ones."""

    span: Span
    own: Ints
    excess: float

    @property
    def evidence(self) -> float:
        return self.span.evidence


def of_day(rows: pd.DataFrame, start: int, bursts: Bursts) -> list[Incident]:
    """Return the incidents of the day that begins in the minute ``start``: the largest excess first.

    ``rows``: as in `counts_of`, of this day and the two days before it. If an outage lasts for more than a day, most of
    this day and the day before can be part of it; so while it goes on, the usual rates of its sources are those of the
    day before. Incidents that touch midnight may have less evidence and excess than one needs: see `over_midnight`.
    """
    counts = counts_of(rows, start, _going_on(counts_of(rows, start - MINUTES), bursts))
    found = sorted(_bursts(counts, bursts), key=lambda one: -one.excess)[:MOST_BURSTS]
    merged = [_incident(counts, some, start, bursts) for some in _clusters(counts, found)]
    return sorted((each for each in merged if each is not None), key=_order)[:MOST_INCIDENTS]


def _going_on(before: Counts, bursts: Bursts) -> pd.DataFrame:
    """Return the sources of a day's bursts that touch its end."""
    ends_after = MINUTES - bursts.gap_minutes
    lasting = [one.own for one in _bursts(before, bursts) if one.span.last >= ends_after and _is_enough(one, bursts)]
    return before.sources.iloc[np.unique(np.concatenate([np.empty(0, dtype=np.int64), *lasting]))]


def over_midnight(incidents: Sequence[Incident], bursts: Bursts) -> list[Incident]:
    """Join the incidents that go on over midnight, and return those with enough evidence and excess.

    An incident belongs to the day on which it began, and goes on in the next day if something in its scope does. One
    that lasts for the whole day is not joined, so no incident has a part in more than two days.
    """
    by_day: dict[int, list[Incident]] = {}
    for each in sorted(incidents, key=_order):
        by_day.setdefault(each.day, []).append(each)
    joined: list[Incident] = []
    for day in sorted(by_day):
        following = by_day.get(day + 1, [])
        for each in by_day[day]:
            next_part = next((other for other in following if _continues(each, other, bursts)), None)
            if next_part is not None:
                following.remove(next_part)
                each = _joined(each, next_part)
            joined.append(each)
    return sorted((each for each in joined if _is_enough(each, bursts)), key=_order)


def _order(each: Incident) -> tuple[float, int, int, list[tuple[str, str, str]]]:
    return -each.excess, each.first, each.last, sorted(each.scope)


def _is_enough(each: Incident | _Burst, bursts: Bursts) -> bool:
    return each.evidence >= bursts.evidence and each.excess >= bursts.least


def _bursts(counts: Counts, bursts: Bursts) -> Iterator[_Burst]:
    """Yield the bursts of all series, from the smallest series to the largest."""
    failed, expected = counts.failed.copy(), counts.expected.copy()
    for level in _LEVELS:
        group = counts.sources.groupby(list(level), sort=True).ngroup().to_numpy()
        order = np.argsort(group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            series = failed[members], expected[members]
            for span in spans(series[0].sum(axis=0), series[1].sum(axis=0), bursts):
                inside = slice(span.first, span.last + 1)
                excess = (series[0] - series[1])[:, inside].sum(axis=1)
                own = _contributing(excess, series[1][:, inside].sum(axis=1))
                one = _Burst(span, members[own], float(min(excess.sum(), excess[own].sum())))
                if len(own) and (_is_enough(one, bursts) or _touches(span, bursts)):
                    failed[one.own, inside] = expected[one.own, inside] = 0.0
                    yield one


def _touches(span: Span, bursts: Bursts) -> bool:
    """Return whether a burst can go on over midnight."""
    return span.first < bursts.gap_minutes or span.last >= MINUTES - bursts.gap_minutes


def _contributing(excess: Floats, expected: Floats) -> Ints:
    """Return the sources that have more failures than usual; all with more than expected, if none has clearly more."""
    clearly = (excess >= 2 * np.sqrt(expected) + 2) & (excess >= expected) & (excess >= _LEAST_PART * excess.sum())
    return np.flatnonzero(clearly if clearly.any() else excess > 0)


def _clusters(counts: Counts, found: Sequence[_Burst]) -> Iterator[list[_Burst]]:
    """Yield the bursts that are one incident each."""
    series = [_Series(counts, each) for each in found]
    root = list(range(len(found)))

    def top(index: int) -> int:
        while root[index] != index:
            index = root[index]
        return index

    for one, other in combinations(range(len(found)), 2):
        if top(one) != top(other) and series[one].is_same(series[other]):
            root[top(other)] = top(one)
    for index in range(len(found)):
        if root[index] == index:
            yield [each for number, each in enumerate(found) if top(number) == index]


class _Series:
    """The names and the failure rates of a burst's sources."""

    def __init__(self, counts: Counts, burst: _Burst) -> None:
        self.span = burst.span
        rows = counts.sources.iloc[burst.own]
        self.tasks, self.exceptions = set(rows["task"]), set(rows["exception_type"])
        self.scope = set(rows[list(_SCOPE)].itertuples(index=False, name=None))
        failed = counts.failed[burst.own].sum(axis=0)
        # An attempt that failed for another reason is no evidence for or against this one.
        weight = failed + counts.ok[np.unique(counts.pair[burst.own])].sum(axis=0)
        self._failed, self._weight = np.cumsum(failed), np.cumsum(np.where(np.isnan(weight), 1.0, weight))

    def is_same(self, other: _Series) -> bool:
        """Return whether both bursts are one incident.

        They are if they share failures; or if they have a task or exception in common, and had about the same failure
        rates all the time from the first begin to the last end. So a task that runs for some minutes of an outage, and
        then fails, belongs to it, and one that succeeds at other times of it does not.
        """
        one, two = self.span, other.span
        if min(one.last, two.last) < max(one.first, two.first):
            return False
        if self.scope & other.scope:
            return True
        if not (self.tasks & other.tasks or self.exceptions & other.exceptions):
            return False
        both = Span(min(one.first, two.first), max(one.last, two.last), 0.0)
        return self._kept_by(both) * other._kept_by(both) >= _LEAST_COMMON

    def _kept_by(self, span: Span) -> float:
        """Return the failure rate in a longer span, as a part of that in the burst."""
        return self._rate(span) / self._rate(self.span)

    def _rate(self, span: Span) -> float:
        failed, weight = (
            sums[span.last] - (sums[span.first - 1] if span.first else 0.0) for sums in (self._failed, self._weight)
        )
        return float(failed / weight)


def _incident(counts: Counts, some: Sequence[_Burst], start: int, bursts: Bursts) -> Incident | None:
    """Return the incident of these bursts; None if all of it is too little."""
    own = np.unique(np.concatenate([each.own for each in some]))
    failed, expected = counts.failed[own].sum(axis=0), counts.expected[own].sum(axis=0)
    first, last = min(each.span.first for each in some), max(each.span.last for each in some)
    evidence = sum(each.span.evidence for each in some)
    inside = slice(first, last + 1)
    attempts = counts.attempts[np.unique(counts.pair[own]), inside].sum()
    scope = counts.sources.iloc[own][list(_SCOPE)].itertuples(index=False, name=None)
    found = Incident(
        start + first,
        start + last,
        evidence,
        _skipped(failed, expected, first),
        frozenset(scope),
        float(failed[inside].sum()),
        float(expected[inside].sum()),
        None if np.isnan(attempts) else float(attempts),
    )
    return found if _is_enough(found, bursts) or _touches(Span(first, last, evidence), bursts) else None


def _skipped(failed: Floats, expected: Floats, first: int) -> int:
    """Return how many of the first minute's failures were usual ones before the begin, by the minute after it."""
    more = failed[min(first + 1, MINUTES - 1)] - expected[first]
    if more <= 0:
        return 0
    before = 1 - (failed[first] - expected[first]) / more
    return int(min(max(before, 0.0) * expected[first], max(failed[first] - 1, 0)))


def _continues(one: Incident, other: Incident, bursts: Bursts) -> bool:
    """Return whether an incident goes on in one of the next day, and neither lasts for its whole day."""
    begins_at_midnight = one.first % MINUTES < bursts.gap_minutes
    ends_at_midnight = other.last % MINUTES >= MINUTES - bursts.gap_minutes
    is_near = other.first - one.last <= bursts.gap_minutes
    return is_near and not (begins_at_midnight or ends_at_midnight) and bool(one.scope & other.scope)


def _joined(one: Incident, other: Incident) -> Incident:
    sums = {name: getattr(one, name) + getattr(other, name) for name in ("evidence", "failed", "expected")}
    attempts = None if one.attempts is None or other.attempts is None else one.attempts + other.attempts
    return replace(one, last=other.last, scope=one.scope | other.scope, attempts=attempts, **sums)
