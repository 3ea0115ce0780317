"""Fixtures of the tests beside other products."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_rmq_delay.testing import PrivateBroker
from tests.support.compatibility.plays import KINDS, Play, Product, play


@pytest.fixture(scope="module")
def vhosts(own_broker: PrivateBroker) -> Iterator[list[str]]:
    """The URLs of a vhost for each kind of task."""
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in KINDS]
    yield [own_broker.vhost(name) for name in names]
    for name in names:
        own_broker.delete_vhost(name)


@pytest.fixture(scope="module")
def make_plays(
    vhosts: list[str], rmq_redis: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Product, Callable[[Play], bool]], dict[str, Play]]:
    """A function that makes all calls, with each kind of task, beside a product."""

    def make(product: Product, reported: Callable[[Play], bool]) -> dict[str, Play]:
        return play(product, tmp_path_factory.mktemp("plays"), vhosts, rmq_redis.url, reported)

    return make
