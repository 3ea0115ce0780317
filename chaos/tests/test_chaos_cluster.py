"""The short form of chaos on three nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from celery_rmq_delay.testing.servers.installation import Installation
from chaos.cluster import cluster_world
from chaos.cluster_faults import CLUSTER_FAULTS
from chaos.run import run
from chaos.schedule import schedule
from chaos.world import Load
from tests.support.brokers.clusters import need_networks

SEED = 20261121
#: Each only until it is detected, the next when it is over; a rolling restart takes longer than a short form has.
BRIEFLY = tuple(
    replace(fault, lasts=(0.0, 1.0), takes=1.0) for fault in CLUSTER_FAULTS if fault.name != "rolling restart"
)


@pytest.mark.slow
def test_killed_silent_and_cut_off_nodes_lose_nothing_and_run_nothing_early_or_twice(
    rmq_installation: Installation, tmp_path: Path
) -> None:
    need_networks()
    load = Load(SEED, tasks=200, duration=20, unit=0.3, workers=2, publishers=1)
    strikes = schedule(SEED, load.duration, BRIEFLY, 1)
    with cluster_world(tmp_path, load, rmq_installation) as world:
        verdict, striker = run(world, BRIEFLY, strikes)

    print(f"{verdict.figures}; explained: {verdict.explained}")
    again = f"python -m chaos --check {tmp_path}"
    assert verdict.good, "\n".join([*map(str, verdict.findings[:20]), *verdict.stories, again])
    assert striker.done == dict.fromkeys((fault.name for fault in BRIEFLY), 1)
    assert verdict.figures["sent"] == load.tasks
