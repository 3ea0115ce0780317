"""The outcomes of attempts after each tier: the share that recovered, with its interval. No I/O."""

from __future__ import annotations

from math import sqrt

from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Row
from ..queries import grouped
from . import text

#: The quantile of the normal distribution for 95 %.
_Z = 1.959963984540054
_BAR = (
    '<svg class="rmq-rate" aria-hidden="true"><rect class="rmq-bar rmq-bar-parked" x="0" y="2" width="{}%" height="10">'
    '</rect><line x1="{}%" x2="{}%" y1="7" y2="7"></line></svg>'
)


def wilson(good: int, of: int, independent: float | None = None) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); from 0 to 1 without trials.

    ``independent``: of these, how many independent trials would vary as much; None: all are independent.
    """
    if not of:
        return 0.0, 1.0
    share, z2 = good / of, _Z * _Z
    trials = of if independent is None else max(min(independent, of), 1.0)
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


class Outcome:
    """A row of the table of tiers."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.queue = text.hostile(row.queue, 120)
        self.task = text.dotted(row.task, 120)
        self.error = text.dotted(row.exception_type, 120)
        self.tier = f"{'exact' if row.tier is None else f'tier {row.tier}'} ({text.delay(row.delay_ms)})"
        self.parked = grouped(row.parked)
        self.recovered = grouped(row.recovered)
        self.exhausted = grouped(row.exhausted)
        self.wasted = text.rough(row.wasted_ms / 1000)

    @cached_property
    def _interval(self) -> tuple[float, float]:
        return wilson(min(self.row.recovered, self.row.parked), self.row.parked, self.row.independent)

    @property
    def rate(self) -> str:
        """The share that recovered at the next attempt."""
        return text.share(self.row.recovered / self.row.parked) if self.row.parked else text.EMPTY

    @property
    def interval(self) -> str:
        """The interval of that share."""
        return text.interval(*self._interval, text.share) if self.row.parked else ""

    @property
    def bar(self) -> SafeString:
        """The share and its interval as a bar."""
        if not self.row.parked:
            return SafeString("")
        shares = (min(1.0, self.row.recovered / self.row.parked), *self._interval)
        return format_html(_BAR, *(round(100 * share, 1) for share in shares))
