"""Which failures one outage can have made: these are one witness, not many. Pure numpy.

Failures are over between two attempts. Those whose spans have a moment in common can all have been over then, however
many they are and whenever they began. So a moment is chosen that lies in most spans, these are one outage, and so on
with the rest, until all are told: about the fewest outages that explain the history.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .options import Options
from .shares import Intervals, Ints


def by_outage(hourly: Intervals, options: Options) -> Intervals:
    """Return the intervals with the outage as cluster, given those whose cluster is the stretch in which they began.

    Stretches are ``Options.cluster_s`` long, and so are the moments: outages that end within two stretches are one.
    What was not seen to be over belongs to the next outage after it, or where there is none to all others of its
    stretch.
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
    told = np.append(moments, 0)[following]
    # Below every moment, so that they meet none.
    cluster[~is_over] = np.where(following < len(moments), told, began[~is_over] - 2**40)
    return replace(hourly, cluster=cluster)


def _moments(first: Ints, until: Ints, count: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[Ints, Ints]:
    """Return the chosen moments in order, and that of each span, both ends of which it may be."""
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
