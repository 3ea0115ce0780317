"""Write synthetic retry histories with a known truth: for tests, benchmarks and to try the pipeline.

    from celery_rmq_delay.analytics import synth

    synth.write("history", synth.Spec(attempts=100_000, days=7))

Needs NumPy and pyarrow, no Spark.
"""

from __future__ import annotations

from .spec import (
    NAMED,
    Dependency,
    Distribution,
    Exponential,
    Lognormal,
    Mixture,
    Queue,
    Shop,
    Spec,
    Task,
    default_shop,
)
from .writing import TRUTH, write

__all__ = [
    "NAMED",
    "TRUTH",
    "Dependency",
    "Distribution",
    "Exponential",
    "Lognormal",
    "Mixture",
    "Queue",
    "Shop",
    "Spec",
    "Task",
    "default_shop",
    "write",
]
