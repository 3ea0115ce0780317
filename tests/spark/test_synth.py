"""Synthetic histories in the pipeline: cleaning finds the bad rows and files of their truth."""

from datetime import datetime, timezone

from celery_rmq_delay.analytics import synth
from celery_rmq_delay.analytics.storage.readers import read_events
from celery_rmq_delay.analytics.tables.attempts import attempts
from celery_rmq_delay.analytics.tables.cleaning import by_task, clean
from celery_rmq_delay.analytics.tables.counts import counted_events
from tests.support.spark.frames import counted


def test_cleaning_finds_the_bad_rows_and_no_others(spark, tmp_path):
    spec = synth.Spec(attempts=300, days=2, duplicates=0.1, bad_rows=20, bad_files=True)
    counts = synth.write(str(tmp_path), spec)["counts"]
    read = read_events(spark, str(tmp_path))
    # A file without rows is not left out.
    assert {**read.problems} == {"unreadable_file": 3, "missing:queue": 1, "wrong_schema": 1}
    cleaned = clean(read.events, datetime(2027, 1, 1, tzinfo=timezone.utc))
    verdicts = counted(cleaned.judged, "verdict")
    assert verdicts.pop(None) == counts["rows"]
    assert {f"bad.{reason}": count for reason, count in verdicts.items()} == {
        name: count for name, count in counts.items() if name.startswith("bad.")
    }
    found = counted_events(attempts(by_task(cleaned.events, partitions=2)).to_counts())
    assert found == (counts["rows"] - counts["duplicates"], counts["duplicates"])
    assert counts["duplicates"] > 0
