"""Group failures by the outage that can have caused them: such failures are one observation, not many. Pure numpy.

A failure ends between two attempts. Failures whose spans have a moment in common can all have ended then, independent
of their number and of when they began. So the moment in the most spans is chosen, these failures are one outage, and so
on with the rest until every failure is assigned: about the fewest outages that explain the history.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .intervals import Intervals, Ints
from .options import Options


def by_outage(hourly: Intervals, options: Options) -> Intervals:
    """Return the intervals with the outage as cluster, given intervals whose cluster is the time slot of their begin.

    Slots are ``Options.cluster_s`` long, and so are the moments: outages that end within two slots are one. A failure
    whose end was not observed belongs to the next outage after it, or if there is none, to the others of its slot.
    """
    began = hourly.cluster
    lasts = options.grid.times / options.cluster_s
    is_over = hourly.high < Intervals.OPEN
    first = began + np.floor(lasts[hourly.low]).astype(np.int64)
    until = began[is_over] + 1 + np.floor(lasts[hourly.high[is_over]]).astype(np.int64)
    moments, of = _moments(first[is_over], until, hourly.count[is_over])
    cluster = np.empty_like(began)
    cluster[is_over] = of
    sought = first[~is_over]
    following = np.searchsorted(moments, sought)
    next_moment = np.append(moments, 0)[following]
    # Below every moment, so that the clusters stay distinct.
    cluster[~is_over] = np.where(following < len(moments), next_moment, began[~is_over] - 2**40)
    return replace(hourly, cluster=cluster, began=began)


def _moments(first: Ints, until: Ints, count: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[Ints, Ints]:
    """Return the chosen moments in order, and the moment of each span; both ends of a span are included."""
    if not len(first):
        return first, first
    start = int(first.min())
    spans, of = np.unique(np.stack([first, until]) - start, axis=1, return_inverse=True)
    weights = np.bincount(of.ravel(), count)
    moment = np.full(spans.shape[1], -1, dtype=np.int64)
    while len(left := np.flatnonzero(moment < 0)):
        begins, ends = spans[:, left]
        size = int(ends.max()) + 2
        covers = np.cumsum(np.bincount(begins, weights[left], size) - np.bincount(ends + 1, weights[left], size))
        at = int(np.argmax(covers))
        moment[left[(begins <= at) & (at <= ends)]] = at
    return np.unique(moment) + start, moment[of.ravel()] + start
