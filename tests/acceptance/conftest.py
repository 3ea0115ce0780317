"""Fixtures of the tests with worker processes."""

import json
import uuid

import pytest

from tests.support.losses import Losses
from tests.support.workers.lab import TIERS, UNIT, Lab
from tests.support.workers.project import Config

#: Whether a test has failed since the shared labs were started.
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        item.session.stash[FAILED] = True
    return report


def config(broker, backend, queue_type, conf, **settings):
    return Config(
        broker=broker,
        backend=backend,
        attempts=f"attempts-{uuid.uuid4().hex}",
        queue_type=queue_type,
        rmq_delay={"tiers": TIERS, **settings},
        conf=conf or {},
    )


@pytest.fixture
def make_lab(rmq_vhost, rmq_redis, tmp_path):
    """A function that makes a lab without a worker: ``make_lab(queue_type, conf=None, broker=None, **settings)``."""
    labs: list[Lab] = []

    def make(queue_type="classic", conf=None, broker=None, **settings):
        labs.append(Lab(config(broker or rmq_vhost, rmq_redis.url, queue_type, conf, **settings), tmp_path))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture(scope="session")
def running_labs(request, own_broker, rmq_redis, tmp_path_factory):
    """A function that returns a lab with a running worker, shared by all tests with the same settings.

    After a failed test new labs are made, so that the next test does not count its leftovers.
    """
    labs: dict[str, Lab] = {}
    losses = Losses()

    def close():
        for lab in labs.values():
            lab.lost(losses)
            lab.close()
            own_broker.delete_vhost(lab.vhost)
        labs.clear()

    def get(queue_type, pool, conf=None, **settings):
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
def pool():
    return "prefork"


@pytest.fixture
def running(running_labs, queue_type, pool):
    """A shared lab with a running worker, with `TIERS` and an exact unit of `UNIT`."""
    return running_labs(queue_type, pool)


@pytest.fixture
def running_classic(running_labs):
    """A lab with a running worker on classic queues, for tests that do not depend on the queue type."""
    return running_labs("classic", "prefork")


@pytest.fixture
def lab(make_lab, queue_type):
    return make_lab(queue_type)


@pytest.fixture
def classic_lab(make_lab):
    """A lab on classic queues, for tests that do not depend on the queue type."""
    return make_lab("classic")
