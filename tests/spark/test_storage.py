"""URLs of the history in Spark: the folder of the collector, with its keys, which are never shown; small files."""

import errno
import os
import threading
from datetime import date
from typing import Any

import psutil
import pytest
from pyarrow import parquet

from celery_rmq_delay.analytics.storage import compaction
from celery_rmq_delay.analytics.storage.files import Storage, hadoop_configuration
from celery_rmq_delay.analytics.storage.readers import read_events
from celery_rmq_delay.exceptions import AnalyticsError
from tests.support.spark.frames import event
from tests.support.spark.history_files import write
from tests.support.waiting import SECONDS

SECRET = "wJalrXUtnFEMI"


def test_keys_of_a_url_reach_hadoop_and_a_missing_connector_is_named(spark):
    with pytest.raises(AnalyticsError) as raised:
        Storage(spark, f"s3://AKIAEXAMPLE:{SECRET}@shop/history?region=eu-west-1&endpoint_override=127.0.0.1:9")
    assert str(raised.value).startswith("s3a://shop/history: Spark has no connector for s3a:// here: add --conf")
    assert f"spark-hadoop-cloud_2.13:{spark.version}" in str(raised.value)
    hadoop = hadoop_configuration(spark)
    assert hadoop.get("fs.s3a.bucket.shop.secret.key") == SECRET
    assert hadoop.get("fs.s3a.bucket.shop.endpoint.region") == "eu-west-1"
    jvm: Any = spark._jvm
    java = psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).cmdline()
    assert "org.apache.spark.deploy.SparkSubmit" in java
    assert not [word for word in java if SECRET in word]


def test_files_of_several_days_are_merged_at_the_same_time_and_keep_their_rows(spark, tmp_path, monkeypatch):
    both = threading.Barrier(2, timeout=SECONDS)
    really = compaction._write_merged

    def write_merged(*given):
        both.wait()
        return really(*given)

    monkeypatch.setattr(compaction, "_write_merged", write_merged)
    ids = {f"{day}-{number}" for day in range(2) for number in range(compaction.LEAST_FILES)}
    for each in ids:
        day, number = map(int, each.split("-"))
        (path,) = write(tmp_path, [event("failed", day * 86_400 + number, each)])
        # Those of the second day are merged by Spark.
        parquet.write_table(parquet.ParquetFile(path).read(), path, use_deprecated_int96_timestamps=bool(day))
    before = read_events(spark, tmp_path.as_uri())
    rows = {tuple(row) for row in before.events.select("task_id", "occurred_at").collect()}

    done = compaction.compact(spark, tmp_path.as_uri(), before, date(2100, 1, 1))

    assert done == (len(ids), 2)
    after = read_events(spark, tmp_path.as_uri()).events.select("task_id", "occurred_at")
    assert {tuple(row) for row in after.collect()} == rows
    assert {each for each, _ in rows} == ids


def test_small_files_stay_if_the_disk_is_full_while_they_are_merged(spark, tmp_path, monkeypatch):
    for number in range(compaction.LEAST_FILES):
        write(tmp_path, [event("failed", number, str(number))])
    before = sorted(tmp_path.glob("*/*"))
    monkeypatch.setattr(parquet, "ParquetWriter", full)
    with pytest.raises(AnalyticsError, match="No space left on device"):
        compaction.compact(spark, tmp_path.as_uri(), read_events(spark, tmp_path.as_uri()), date(2100, 1, 1))
    assert sorted(tmp_path.glob("*/*")) == before


def full(*given, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
