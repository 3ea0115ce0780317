"""The logarithmic grid of times, and the point that represents a time. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Grid:
    """Times from ``first_s`` to at least ``last_s`` seconds, ``per_decade`` to a factor of ten.

    A time is rounded to the *nearest* point (of logarithms), for failed and successful attempts alike. Widening the
    interval instead - low down, high up - would put whole failures into the cell between the two: the maximum of the
    likelihood is then 0 before the cell and 1 after it, independent of the true share.
    At 50 points per decade a time is moved by at most 2.3 %: the share of an exponential by at most 0.009.
    """

    first_s: float
    last_s: float
    per_decade: int

    @property
    def points(self) -> int:
        """How many points there are."""
        return math.ceil(math.log10(self.last_s / self.first_s) * self.per_decade - 1e-9) + 1

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds of each cell: 0 for cell 0, then the points."""
        import numpy as np  # here, as the options of the commands do not need it

        steps = np.arange(self.points) / self.per_decade
        return np.concatenate(([0.0], self.first_s * 10.0**steps))

    def cells(self, seconds: ArrayLike) -> NDArray[np.int64]:
        """Return the cell of each time: 0 for times of 0 or less, 1 for the first point; never more than the last."""
        import numpy as np

        times = np.asarray(seconds, dtype=np.float64)
        steps = np.log10(np.maximum(times, self.first_s) / self.first_s) * self.per_decade
        cells = np.minimum(np.floor(steps + 0.5), self.points - 1) + 1
        return np.where(times > 0, cells, 0).astype(np.int64)
