"""Unit tests that need Spark's types are left out where it is not installed: in all but one of tox's environments."""

from __future__ import annotations

from importlib.util import find_spec

NEED_SPARK = [
    "test_whole_tasks.py",
    "test_by_attempt.py",
    "test_clocks.py",
    "test_day_files.py",
    "test_docs_analytics.py",
    "test_outages.py",
]

collect_ignore = [] if find_spec("pyspark") else NEED_SPARK
