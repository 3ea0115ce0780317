"""Fixtures of PostgreSQL and Redis: a pytest plugin."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from celery_rmq_delay.exceptions import ServerNotFoundError
from celery_rmq_delay.testing.plugin import shared, skip_or_fail
from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.redis import PrivateRedis

Server = TypeVar("Server", PrivatePostgres, PrivateRedis)


@dataclass(frozen=True)
class ExternalServer:
    """A server with a known URL that is neither started nor stopped by the fixtures."""

    url: str


@contextmanager
def _server(config: pytest.Config, variable: str, kind: type[Server]) -> Iterator[Server | ExternalServer]:
    """Yield the server that an environment variable names, or a private one for the whole test run."""
    if external := os.environ.get(variable):
        yield ExternalServer(external)
        return
    try:
        private = kind()
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with shared(config, private):
        yield private


@pytest.fixture(scope="session")
def rmq_redis(pytestconfig: pytest.Config) -> Iterator[PrivateRedis | ExternalServer]:
    """A Redis for the whole test run; has ``url``. Set the environment variable REDIS_URL to use another one."""
    with _server(pytestconfig, "REDIS_URL", PrivateRedis) as redis:
        yield redis


@pytest.fixture(scope="session")
def rmq_postgres(pytestconfig: pytest.Config) -> Iterator[PrivatePostgres | ExternalServer]:
    """A PostgreSQL for the whole test run; has ``url``. Set the environment variable POSTGRES_URL for another one."""
    with _server(pytestconfig, "POSTGRES_URL", PrivatePostgres) as postgres:
        yield postgres
