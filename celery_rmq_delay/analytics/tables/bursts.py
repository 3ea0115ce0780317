"""Expected failures of a day, and the minutes in which there are many more: bursts. Pure numpy and pandas.

Only first attempts count: their retries repeat an outage minutes or hours later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..estimate.intervals import Flags, Floats, Ints

MINUTES = 1440

#: Days before and after a day whose failures decide about the incidents of that day.
DAYS_BEFORE, DAYS_AFTER = 3, 1

#: What fails together: a source is one combination of these. Missing values are empty texts.
SOURCE = ("queue", "task", "exception_type", "fingerprint")

#: Failures per minute that are added to the expected ones, so that few failures of a quiet source are no burst.
_FLOOR = 0.1
#: Length in minutes of the blocks for which the usual failure rate is computed.
_BLOCK = 30
_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Definition of an incident.

    ``factor``: the failures of a burst, as a multiple of the expected ones. ``evidence``: the least logarithm of the
    likelihood ratio of both. ``least``: the least number of failures beyond the expected ones. Bursts of one series
    that are at most ``gap_minutes`` apart are one.
    """

    factor: float = 3.0
    evidence: float = 15.0
    least: int = 20
    gap_minutes: int = 10


@dataclass(frozen=True)
class Span:
    """The minutes of a burst, both included, and the logarithm of its likelihood ratio."""

    first: int
    last: int
    evidence: float


@dataclass(frozen=True)
class Counts:
    """The failed first attempts of a day, by source and minute (0 to 1439), and the ``expected`` ones.

    ``sources`` has the columns `SOURCE`, sorted, ``usual``: failures per attempt, and ``is_share``: it is per minute if
    this is false, as attempts are not known. ``ok`` are the successful first attempts of a queue's task, NaN if
    they are not known; ``attempts`` are they and all failed ones; ``pair`` is the row of both for each source.
    """

    sources: pd.DataFrame
    failed: Floats
    expected: Floats
    ok: Floats
    attempts: Floats
    pair: Ints


def counts_of(rows: pd.DataFrame, start: int, carried: pd.DataFrame | None = None) -> Counts:
    """Return the counts of the day that begins in the minute ``start`` (since the epoch).

    ``rows``: `SOURCE`, ``minute``, ``failed`` and ``ok`` (first attempts) of this day and the day before; others are
    left out. Rows with ``ok`` have no exception. The usual failure rate of a source is that of both days, without the
    blocks of 30 minutes that have many more failures than the others; it is a rate per minute where successes are not
    known. ``carried``: sources of the day before, as in `Counts`; their usual rates are used if they are lower.
    """
    near = rows[rows["minute"].between(start - MINUTES, start + MINUTES - 1)]
    ordered = near.sort_values([*SOURCE, "minute"], kind="stable")
    at = ordered["minute"].to_numpy(dtype=np.int64) - (start - MINUTES)
    is_failure = ordered["failed"].to_numpy() > 0
    pair_of, pairs = _numbered(ordered[["queue", "task"]])
    failed = _by_minute(pair_of, at, ordered["failed"], len(pairs))
    ok = _by_minute(pair_of, at, ordered["ok"], len(pairs))
    is_known: Flags = np.zeros((len(pairs), 1), dtype=bool)
    if ok[:, MINUTES:].any():
        is_known = np.asarray(ok.any(axis=1, keepdims=True))
    failures = ordered[is_failure]
    source_of, sources = _numbered(failures[list(SOURCE)])
    pair = np.zeros(len(sources), dtype=np.int64)
    pair[source_of] = pair_of[is_failure]
    by_source = _by_minute(source_of, at[is_failure], failures["failed"], len(sources))
    weights = np.where(is_known, failed + ok, 1.0)
    if not (ok if is_known.any() else failed)[:, :MINUTES].any():
        # The day before has no data, which is no evidence that nothing failed.
        weights[:, :MINUTES] = 0.0
    sources["is_share"] = is_known[pair, 0]
    sources["usual"] = usual_rates(_blocks(by_source), _blocks(weights)[pair])
    if carried is not None:
        both = sources.merge(carried, "left", [*SOURCE, "is_share"], suffixes=("", "_before"))
        sources["usual"] = both[["usual", "usual_before"]].min(axis=1)
    rates = sources["usual"].to_numpy()
    return Counts(
        sources,
        by_source[:, MINUTES:],
        rates[:, None] * weights[pair, MINUTES:],
        np.where(is_known, ok, np.nan)[:, MINUTES:],
        np.where(is_known, weights, np.nan)[:, MINUTES:],
        pair,
    )


def usual_rates(failed: Floats, weights: Floats) -> Floats:
    """Return the usual failures per weight of each row: of its blocks without those that have many more failures.

    It begins with the blocks of the lowest rates that have half of the weight, or as little more as possible, and then
    takes all blocks that agree with the rate found so far, until they no longer change.
    """
    rate = np.divide(failed, weights, out=np.full(failed.shape, np.inf), where=weights > 0)
    order = np.argsort(rate, axis=1, kind="stable")
    ordered = np.take_along_axis(weights, order, axis=1)
    before = np.cumsum(ordered, axis=1) - ordered
    is_low = np.empty(failed.shape, dtype=bool)
    np.put_along_axis(is_low, order, before < weights.sum(axis=1, keepdims=True) / 2, axis=1)
    rates = np.zeros(len(failed))
    for _ in range(_ROUNDS):
        total = (weights * is_low).sum(axis=1)
        np.divide((failed * is_low).sum(axis=1), total, out=rates, where=total > 0)
        expected = rates[:, None] * weights
        agrees = (failed <= 2 * expected + 3 * np.sqrt(expected) + 3) & (weights > 0)
        if (agrees == is_low).all():
            break
        is_low = agrees
    return rates


def spans(failed: Floats, expected: Floats, bursts: Bursts) -> list[Span]:
    """Return the bursts of one series of minutes, in order, each with some evidence, but not necessarily enough.

    A minute's evidence is the logarithm of the likelihood ratio of ``factor`` times the expected failures, Poisson
    distributed. A burst is a span whose sum is positive from its begin and greatest at its end: the cumulative sum test
    of Page (1954), *Biometrika* 41.
    """
    gains = math.log(bursts.factor) * failed - (bursts.factor - 1) * (expected + _FLOOR)
    if gains[gains > 0].sum() < _WEAK:
        return []
    found: list[Span] = []
    for each in _positive(gains.tolist(), bursts.gap_minutes):
        if each.evidence < _WEAK:
            continue
        if found and each.first - found[-1].last <= bursts.gap_minutes:
            before = found.pop()
            found.append(Span(before.first, each.last, before.evidence + each.evidence))
        else:
            found.append(each)
    return found


#: Evidence below which a span is noise.
_WEAK = 4.0


def _positive(gains: list[float], gap: int) -> Iterator[Span]:
    """Yield the spans of positive sums; a span ends where its sum is not exceeded in the ``gap`` minutes after it."""
    minute = 0
    while minute < len(gains):
        if gains[minute] <= 0:
            minute += 1
            continue
        first = last = minute
        total = most = gains[minute]
        minute += 1
        while minute < len(gains) and minute - last <= gap:
            total += gains[minute]
            if total <= 0:
                break
            if total > most:
                last, most = minute, total
            minute += 1
        yield Span(first, last, most)
        minute = last + 1


def _numbered(rows: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
    """Return the number of each row's values among the different ones, and these."""
    grouped = rows.groupby(list(rows.columns), sort=True)
    return grouped.ngroup().to_numpy(dtype=np.int64), grouped.size().reset_index()[list(rows.columns)]


def _by_minute(row: Ints, minute: Ints, values: pd.Series[Any], rows: int) -> Floats:
    found = np.zeros((rows, 2 * MINUTES))
    np.add.at(found, (row, minute), values.to_numpy(dtype=np.float64))
    return found


def _blocks(minutes: Floats) -> Floats:
    return np.asarray(minutes.reshape(len(minutes), minutes.shape[1] // _BLOCK, _BLOCK).sum(axis=2))
