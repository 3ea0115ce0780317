"""The other explanation of a history: a task recovers after some number of attempts, whenever they come. Pure NumPy.

The curve of `shares` assumes that a failure ends at some time, and that the next attempt succeeds. With this one, each
attempt succeeds with a probability that depends on its number only. A history with one ladder and no jitter fits both
equally well, as the number of an attempt follows from its time; so a ladder is judged under both, see `views`.

How many of the failures can be of the second kind is estimated as the weight of a mixture of the two fitted models
(Atkinson, A. C. (1970): A method for discriminating between models. JRSS B 32), with the variance between outages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from .intervals import Floats, Intervals, Ints, draws
from .options import Options
from .shares import Shares, shares

#: What counts.
TIME, ATTEMPTS = "time", "attempts"

#: A model is favoured if it must hold for more than this share of the failures.
_HALF = 0.5

#: A history that allows no more than this share of failures of the second kind separates the two.
_SEPARATED = 0.1

#: Attempts whose number is distinguished.
_MOST_RETRIES = 100

#: No failure is less probable than this in either model.
_LEAST = 1e-6

#: Distance of both ends of a 95 % interval, in standard errors.
_ERRORS = 2.0

#: If the models differ by less information for each failure, a better fit of the second one can be an error of the
#: curve between its knots. One ladder has as little, also with some jitter.
_CLEAR = 0.02

_HALVINGS = 40

#: The part where nothing can show it.
_UNKNOWN = (0.0, 0.0, 1.0)

#: What a ladder recovers, (row, ladder, tier), instead of what the curve states.
View = Callable[[Floats], Floats]


def by_time(ended: Floats) -> Floats:
    """Return what the curve states: only time counts."""
    return ended


@dataclass(frozen=True)
class ByAttempt:
    """``share``: (round, number of retries) of failures that have recovered, from 0 retries on; row 0: the estimate.

    ``part``: the share of failures for which the number of attempts counts, and not time, with its 95 % interval. It is
    0 without the numbers of attempts.
    """

    share: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    part: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def favoured(self) -> str | None:
        """The model that the history favours, ``time`` or ``attempts``; None: it does not show which one is right."""
        _, low, high = self.part
        if high < _HALF:
            return TIME
        return ATTEMPTS if low > _HALF else None

    @property
    def weight(self) -> float:
        """The share of failures of this kind for which a ladder must keep the limits: all, if the history shows any."""
        part, low, high = self.part
        if low > 0:
            return 1.0
        return part if high <= _SEPARATED else high

    @property
    def views(self) -> tuple[View, ...]:
        """What a ladder recovers if only time counts, if only attempts do, and at the least, if it needs both."""
        if not self.weight:
            return (by_time,)
        return by_time, self.by_attempts, self.by_both

    @property
    def likely(self) -> View:
        """What the favoured model states; without one, that of time."""
        return self.by_attempts if self.favoured == ATTEMPTS else by_time

    def by_attempts(self, ended: Floats) -> Floats:
        """Return the shares if attempts count in the expected part of failures."""
        return np.asarray(ended + self.weight * (self._of(ended) - ended))

    def by_both(self, ended: Floats) -> Floats:
        """Return the shares if those failures need both time and attempts."""
        return np.asarray(ended + self.weight * (np.minimum(self._of(ended), ended) - ended))

    def rows(self, rows: slice) -> ByAttempt:
        """Return only these rows."""
        return ByAttempt(self.share[rows], self.part)

    def _of(self, ended: Floats) -> Floats:
        """Return the share by the number of each retry; after the last one that the history has, none recovers."""
        retries = np.minimum(np.arange(1, ended.shape[-1] + 1), self.share.shape[1] - 1)
        return self.share[: len(ended), None, retries]


def by_attempt(data: Intervals, estimate: Shares, options: Options, like: ByAttempt | None = None) -> ByAttempt:
    """Return the shares by the number of retries, in as many rounds as ``estimate`` has (of the same ``data``).

    It is the estimate of Kaplan and Meier (1958) for the number of retries. ``like``: whose interval it has, of a
    longer history; None: its own. Without the number of retries in ``data`` no failure is of this kind.
    """
    if not data.retries.any():
        return ByAttempt()
    retries = np.minimum(data.retries, _MOST_RETRIES)
    # A failure without a known retry shows nothing about it.
    data = replace(data, count=np.where(retries > 0, data.count, 0.0))
    names, cluster = np.unique(data.cluster, return_inverse=True)
    times = np.ones((1, len(names)))
    if len(estimate.likely) > 1:
        times = np.concatenate([times, draws(len(names), len(estimate.likely) - 1, options.seed)])
    share = _shares(data, retries, times, cluster.ravel())
    return ByAttempt(share, _part(data, estimate, share[0], retries, options) if like is None else like.part)


def _shares(data: Intervals, retries: Ints, times: Floats, cluster: Ints) -> Floats:
    """Return the shares (round, number of retries) if each cluster counts as often as ``times`` (round, cluster)."""
    clusters, size = times.shape[1], int(retries.max()) + 1
    cell = cluster * size + retries
    ended, every = (
        times @ np.bincount(cell[rows], data.count[rows], clusters * size).reshape(clusters, size)
        for rows in (data.is_over, np.ones(len(cell), dtype=bool))
    )
    at_risk = np.cumsum(every[:, ::-1], axis=1)[:, ::-1]
    hazard = np.divide(ended, at_risk, out=np.zeros_like(ended), where=at_risk > 0)
    return np.asarray(1 - np.cumprod(1 - hazard, axis=1))


def _part(
    data: Intervals, estimate: Shares, share: Floats, retries: Ints, options: Options
) -> tuple[float, float, float]:
    """Return the part of failures for which attempts count, and its 95 % interval: of those that can show it."""
    is_fair = (data.fair > 0) & (data.count > 0)
    if not is_fair.all() or (data.fair < data.count).any():
        data, retries = replace(data.chosen(is_fair), count=data.fair[is_fair]), retries[is_fair]
        if data.count.sum() < options.min_episodes or not data.is_over.any():
            return _UNKNOWN
        estimate = shares(data, replace(options, bootstrap_rounds=0))
        share = _shares(data, retries, np.ones((1, 1)), np.zeros_like(retries))[0]
    one, other = _probabilities(data, estimate, share, retries)
    gain = other - one

    def slopes(part: float) -> Floats:
        return np.asarray(gain / (one + part * gain))

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(data.count @ slopes(middle)) > 0:
            low = middle
        else:
            high = middle
    slope = slopes(low)
    of = np.unique(data.cluster, return_inverse=True)[1].ravel()
    sums, sizes = np.bincount(of, data.count * slope), np.bincount(of, data.count)
    spread = float(np.sqrt(((sums - sums.sum() * sizes / sizes.sum()) ** 2).sum()))
    information = float(data.count @ slope**2)
    error = spread / information if information > _LEAST else np.inf
    is_clear = information >= _CLEAR * data.count.sum()
    return low, max(low - _ERRORS * error, 0.0) if is_clear else 0.0, min(low + _ERRORS * error, 1.0)


def _probabilities(data: Intervals, estimate: Shares, share: Floats, retries: Ints) -> tuple[Floats, Floats]:
    """Return how probable each row is, given when its attempts ended: if time counts, and if attempts do."""
    curve, horizon = estimate.likely[0], estimate.horizon
    is_seen = data.high <= horizon
    begin, end = curve[np.minimum(data.low, horizon)], curve[np.minimum(data.high, horizon)]
    of_time = np.where(is_seen, end, 1.0) - begin
    before = np.where(data.is_over, share[np.maximum(retries - 1, 0)], share[retries])
    of_attempts = np.where(data.is_over, share[retries], 1.0) - before
    return np.maximum(of_time, _LEAST), np.maximum(of_attempts, _LEAST)
