"""Fixtures of the tests beside other products."""

import uuid

import pytest

from tests.support.compatibility.plays import KINDS, has_last, play
from tests.support.workers.lab import Lab
from tests.support.workers.project import Config


@pytest.fixture(scope="module")
def vhosts(own_broker):
    """The URLs of a vhost for each kind of task."""
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in KINDS]
    yield [own_broker.vhost(name) for name in names]
    for name in names:
        own_broker.delete_vhost(name)


@pytest.fixture(scope="module")
def make_plays(vhosts, rmq_redis, tmp_path_factory):
    """A function that makes all calls, with each kind of task, beside a product."""

    def make(product, reported):
        return play(product, tmp_path_factory.mktemp("plays"), vhosts, rmq_redis.url, reported)

    return make


@pytest.fixture(scope="module")
def plays(request, make_plays):
    """The calls beside the `PRODUCT` of a module, whose `attempts` reads what that has reported."""
    return make_plays(request.module.PRODUCT, lambda play: has_last(request.module.attempts(play)))


@pytest.fixture
def make_lab(managed_vhost, rmq_redis, tmp_path):
    """A function that makes a lab on a vhost of the broker with the management plugin."""
    labs: list[Lab] = []

    def make(**options):
        config = Config(managed_vhost, rmq_redis.url, f"attempts-{uuid.uuid4().hex}", **options)
        labs.append(Lab(config, tmp_path))
        return labs[-1]

    yield make
    for lab in labs:
        lab.close()
