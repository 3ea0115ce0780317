"""Fixtures of the tests on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_rmq_delay.config import QueueType

from .lab import Lab


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    kind: QueueType = request.param
    return kind


@pytest.fixture
def lab(rmq_broker: Any, queue_type: QueueType) -> Iterator[Lab]:
    lab = Lab(rmq_broker.url, queue_type)
    yield lab
    lab.close()


@pytest.fixture
def classic_lab(rmq_broker: Any) -> Iterator[Lab]:
    lab = Lab(rmq_broker.url, "classic")
    yield lab
    lab.close()


@pytest.fixture
def quorum_lab(rmq_broker: Any) -> Iterator[Lab]:
    lab = Lab(rmq_broker.url, "quorum")
    yield lab
    lab.close()
