"""Synthetic histories in the pipeline: cleaning finds the bad rows and files of their truth."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from pyspark.sql import SparkSession

from celery_rmq_delay.analytics import synth
from celery_rmq_delay.analytics.storage.readers import read_events
from celery_rmq_delay.analytics.tables.cleaning import DUPLICATE, clean
from tests.support.spark.frames import counted


def test_cleaning_finds_the_bad_rows_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    spec = synth.Spec(attempts=300, days=2, duplicates=0.1, bad_rows=20, bad_files=True)
    counts = synth.write(str(tmp_path), spec)["counts"]
    read = read_events(spark, str(tmp_path))
    # A file without rows is not left out.
    assert {**read.problems} == {"unreadable_file": 3, "missing:queue": 1, "wrong_schema": 1}
    found = counted(clean(read.events, datetime(2027, 1, 1, tzinfo=timezone.utc), 2).marked, "verdict")
    good, duplicates = found.pop(None), found.pop(DUPLICATE)
    assert {f"bad.{reason}": count for reason, count in found.items()} == {
        name: count for name, count in counts.items() if name.startswith("bad.")
    }
    assert duplicates == counts["duplicates"] > 0
    assert good == counts["rows"] - counts["duplicates"]
