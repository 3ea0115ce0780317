"""A short form of chaos: the faults of a system with one node strike once each."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_rmq_delay.testing import PrivateBroker, ServerNotFoundError
from celery_rmq_delay.testing.plugin import skip_or_fail
from celery_rmq_delay.testing.servers.installation import Installation
from chaos.faults import FAULTS
from chaos.run import run
from chaos.schedule import schedule
from chaos.world import Load, World

SEED = 20261121
#: An upgrade is a change of ladders with the same ladder.
ONCE = tuple(fault for fault in FAULTS if fault.name != "upgrade the workers")


@pytest.mark.slow
def test_faults_lose_nothing_and_run_nothing_early_or_twice_without_a_reason(
    rmq_installation: Installation, tmp_path: Path
) -> None:
    load = Load(SEED, tasks=600, duration=120, unit=0.3, workers=2, publishers=1)
    try:
        world = World(tmp_path, load, PrivateBroker(rmq_installation.server, rmq_installation.root))
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with world:
        verdict, striker = run(world, ONCE, schedule(SEED, load.duration, ONCE, 1))

    print(f"{verdict.figures}; explained: {verdict.explained}")
    again = f"python -m chaos --check {tmp_path}"
    assert verdict.good, "\n".join([*map(str, verdict.findings[:20]), *verdict.stories, again])
    assert striker.done == dict.fromkeys((fault.name for fault in ONCE), 1)
    assert verdict.figures["sent"] == load.tasks
