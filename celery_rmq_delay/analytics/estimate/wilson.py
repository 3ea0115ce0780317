"""The score interval of a share. Pure NumPy.

Wilson, E. B. (1927): Probable inference, the law of succession, and statistical inference. JASA 22.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .intervals import Floats

#: The quantile of the normal distribution for 95 %.
Z_95 = 1.959963984540054


def wilson(share: ArrayLike, trials: ArrayLike, clusters: int | None = None) -> tuple[Floats, Floats]:
    """Return both ends of the 95 % interval of shares; ``trials``, above 0: independent observations of each.

    ``clusters``: groups of observations by which the number of independent ones was estimated; few of them make the
    interval wider, as in Student's distribution.
    """
    p, n = np.asarray(share, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    weight = _quantile(clusters) ** 2 / n
    centre, margin = p + weight / 2, np.sqrt(weight * (p * (1 - p) + weight / 4))
    return np.maximum((centre - margin) / (1 + weight), 0.0), np.minimum((centre + margin) / (1 + weight), 1.0)


def independent(share: ArrayLike, variance: ArrayLike) -> Floats:
    """Return how many independent observations make a share as variable as it is; infinite if it does not vary."""
    p, known = np.asarray(share, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    found: Floats = np.divide(p * (1 - p), known, out=np.full(np.shape(known), np.inf), where=known > 0)
    return found


def _quantile(clusters: int | None) -> float:
    """Return the quantile of Student's distribution for 95 %, by the expansion of Cornish and Fisher."""
    if clusters is None:
        return Z_95
    freedom, z = max(clusters - 1, 1), Z_95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
