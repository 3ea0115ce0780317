"""Fixtures of the tests with worker processes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_rmq_delay.testing import PrivateBroker
from tests.support.losses import Losses
from tests.support.workers.lab import TIERS, UNIT, Lab
from tests.support.workers.project import Config

#: Whether a test has failed since the shared labs were started.
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test failed: its tasks may still be in queues and workers."""
    report = yield
    if report.failed:
        item.session.stash[FAILED] = True
    return report


def config(broker: str, backend: str, queue_type: str, conf: dict[str, Any] | None, **settings: Any) -> Config:
    return Config(
        broker=broker,
        backend=backend,
        attempts=f"attempts-{uuid.uuid4().hex}",
        queue_type=queue_type,
        rmq_delay={"tiers": TIERS, **settings},
        conf=conf or {},
    )


@pytest.fixture
def make_lab(rmq_vhost: str, rmq_redis: Any, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """A function that makes a lab without a worker: ``make_lab(queue_type, conf=None, broker=None, **settings)``."""
    labs: list[Lab] = []

    def make(queue_type: str = "classic", conf: Any = None, broker: str | None = None, **settings: Any) -> Lab:
        labs.append(Lab(config(broker or rmq_vhost, rmq_redis.url, queue_type, conf, **settings), tmp_path))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture(scope="session")
def running_labs(
    request: pytest.FixtureRequest, own_broker: PrivateBroker, rmq_redis: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Lab]]:
    """A function that returns a lab with a running worker, shared by all tests with the same settings.

    After a failed test new labs are made, so that the next test does not count its leftovers.
    """
    labs: dict[str, Lab] = {}
    losses = Losses()

    def close() -> None:
        for lab in labs.values():
            lab.lost(losses)
            lab.close()
            own_broker.delete_vhost(lab.vhost)
        labs.clear()

    def get(queue_type: str, pool: str, conf: Any = None, **settings: Any) -> Lab:
        if request.session.stash.get(FAILED, False):
            close()
            request.session.stash[FAILED] = False
        key = json.dumps([queue_type, pool, conf, settings])
        lab = labs.get(key)
        if lab is None:
            name = f"{queue_type}-{pool}-{uuid.uuid4().hex[:8]}"
            wanted = config(own_broker.vhost(name), rmq_redis.url, queue_type, conf, exact_unit=UNIT, **settings)
            labs[key] = lab = Lab(wanted, tmp_path_factory.mktemp(name))
            lab.worker(pool, 4, "--queues", "shop,other")
        lab.reset(losses)
        return lab

    yield get
    close()
    losses.report()


@pytest.fixture
def pool() -> str:
    return "prefork"


@pytest.fixture
def running(running_labs: Callable[..., Lab], queue_type: str, pool: str) -> Lab:
    """A shared lab with a running worker, with `TIERS` and an exact unit of `UNIT`."""
    return running_labs(queue_type, pool)


@pytest.fixture
def running_classic(running_labs: Callable[..., Lab]) -> Lab:
    """A lab with a running worker on classic queues, for tests that do not depend on the queue type."""
    return running_labs("classic", "prefork")


@pytest.fixture
def lab(make_lab: Callable[..., Lab], queue_type: str) -> Lab:
    return make_lab(queue_type)


@pytest.fixture
def classic_lab(make_lab: Callable[..., Lab]) -> Lab:
    """A lab on classic queues, for tests that do not depend on the queue type."""
    return make_lab("classic")
