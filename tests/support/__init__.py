"""Shared helpers of the tests, by kind: brokers, workers, Django, Spark, a browser, packages, waiting."""

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parents[2]
