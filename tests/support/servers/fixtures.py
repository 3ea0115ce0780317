"""Fixtures of PostgreSQL and Redis: a pytest plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from celery_rmq_delay.exceptions import ServerNotFoundError
from celery_rmq_delay.testing.plugin import shared, skip_or_fail
from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.redis import PrivateRedis


@dataclass(frozen=True)
class ExternalServer:
    """A server with a known URL that is neither started nor stopped by the fixtures."""

    url: str


@pytest.fixture(scope="session")
def rmq_redis(pytestconfig: pytest.Config) -> Iterator[PrivateRedis | ExternalServer]:
    """A Redis for the whole test run; has ``url``. Set the environment variable REDIS_URL to use another one."""
    if external := os.environ.get("REDIS_URL"):
        yield ExternalServer(external)
        return
    try:
        redis = PrivateRedis()
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with shared(pytestconfig, redis):
        yield redis


@pytest.fixture(scope="session")
def rmq_postgres(pytestconfig: pytest.Config) -> Iterator[PrivatePostgres | ExternalServer]:
    """A PostgreSQL for the whole test run; has ``url``. Set the environment variable POSTGRES_URL for another one."""
    if external := os.environ.get("POSTGRES_URL"):
        yield ExternalServer(external)
        return
    try:
        postgres = PrivatePostgres()
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with shared(pytestconfig, postgres):
        yield postgres
