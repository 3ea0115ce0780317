"""One Spark session for all tests of the pipeline: starting a Java machine takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from celery_rmq_delay.analytics.session import open_session
from tests.spark.cluster import STARTS_SOONER


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine; what it writes goes to a temporary folder. Its Java ends with the tests."""
    place = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.extraJavaOptions": STARTS_SOONER,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(place / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    session = open_session("local[2]", conf)
    yield session
    end_java(session)


def end_java(session: SparkSession) -> None:
    """Stop the session and the Java machine behind it, which would otherwise live as long as this process."""
    gateway: Any = SparkContext._gateway
    session.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # the next session starts another
    gateway.proc.stdin.close()  # by which it knows that it is to end
    gateway.proc.wait(timeout=30)
