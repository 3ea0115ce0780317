"""One Spark session for all tests of the pipeline: starting a Java machine takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.machine import MOST_SECONDS, SharedSpark


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """Spark on two cores of this machine; what it writes goes to a temporary folder. Its Java ends with the tests."""
    shared = SharedSpark(tmp_path_factory.mktemp("spark"))
    yield shared
    shared.close()


@pytest.fixture
def spark(shared_spark: SharedSpark, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session that all tests share."""
    own = request.node.get_closest_marker("timeout")
    with shared_spark.limited(MOST_SECONDS if own is None else 0.8 * own.args[0]) as session:
        yield session
