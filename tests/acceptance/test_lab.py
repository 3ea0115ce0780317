"""A closed lab has closed its connections: the other acceptance tests rely on it."""

from __future__ import annotations

import gc

from tests.support.workers.lab import Lab, close_app


def test_a_result_that_outlives_its_closed_app_opens_no_connection(lab: Lab) -> None:
    """The garbage collector would find that connection, and its warning would fail a later test."""
    result = lab.task("add").delay(1, 2)
    close_app(lab.app)
    connected = lab.redis.info("clients")["connected_clients"]
    del result
    gc.collect()

    assert lab.redis.info("clients")["connected_clients"] <= connected
