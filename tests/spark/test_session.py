"""The session that the other tests share."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path

import pandas
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

FIELDS = {"name": StringType(), "at": TimestampType(), "n": LongType()}
SCHEMA = StructType([StructField(name, kind) for name, kind in FIELDS.items()])
NOON = datetime(2026, 3, 29, 12, tzinfo=timezone.utc)


def test_rows_go_through_parquet_and_python_workers_of_this_python(spark: SparkSession, tmp_path: Path) -> None:
    def described(frame: pandas.DataFrame) -> pandas.DataFrame:
        return pandas.DataFrame({"name": [sys.executable], "at": [frame["at"].max()], "n": [frame["n"].sum()]})

    rows = [("a", NOON, 1), ("a", NOON, 2), ("b", NOON, 3)]
    spark.createDataFrame(rows, SCHEMA).write.parquet(str(tmp_path / "rows"))
    found = spark.read.schema(SCHEMA).parquet(str(tmp_path / "rows")).groupBy("name").applyInPandas(described, SCHEMA)
    assert sorted(found.toPandas()["n"]) == [3, 3]
    assert {row["name"] for row in found.collect()} == {sys.executable}
    pandas_rows = spark.createDataFrame(pandas.DataFrame({"name": ["c"], "n": [4]}))
    assert pandas_rows.collect()[0]["n"] == 4
    assert found.selectExpr("date_format(at, 'HH:mm') AS at").distinct().collect()[0]["at"] == "12:00"
