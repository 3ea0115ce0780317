"""One Spark session for all tests of the pipeline: starting a Java machine takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.machine import MOST_SECONDS, MOST_SECONDS_SLOW, TIMEOUT, SharedSpark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """Spark on two cores of this machine; what it writes goes to a temporary folder. Its Java ends with the tests."""
    shared = SharedSpark(tmp_path_factory.mktemp("spark"))
    yield shared
    shared.close()


@pytest.fixture
def spark(shared_spark: SharedSpark, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session that all tests share."""
    is_slow = request.node.get_closest_marker("slow") is not None
    with shared_spark.limited(MOST_SECONDS_SLOW if is_slow else MOST_SECONDS) as session:
        yield session
