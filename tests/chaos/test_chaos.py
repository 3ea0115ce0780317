"""The short form of chaos: every fault of a system with one node strikes once."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_rmq_delay.testing import PrivateBroker, ServerNotFoundError
from celery_rmq_delay.testing.installation import Installation
from celery_rmq_delay.testing.plugin import skip_or_fail

from .faults import FAULTS
from .run import run
from .schedule import schedule
from .world import Load, World

SEED = 20261121
#: An upgrade is a change of ladders that changes none.
ONCE = tuple(fault for fault in FAULTS if fault.name != "upgrade the workers")


@pytest.mark.timeout(900)
def test_every_fault_once_loses_nothing_and_runs_nothing_early_or_twice_without_a_reason(
    rmq_installation: Installation, tmp_path: Path
) -> None:
    load = Load(SEED, tasks=300, duration=35, unit=0.3, workers=2, publishers=1)
    strikes = schedule(SEED, load.duration, ONCE, 1)
    try:
        world = World(tmp_path, load, PrivateBroker(rmq_installation.server, rmq_installation.root))
    except ServerNotFoundError as error:
        skip_or_fail(error)
    with world:
        verdict, striker = run(world, ONCE, strikes)

    print(f"{verdict.figures}; explained: {verdict.explained}")
    again = f"python -m tests.chaos --check {tmp_path}"
    assert verdict.good, "\n".join([*map(str, verdict.findings[:20]), *verdict.stories, again])
    assert striker.done == dict.fromkeys((fault.name for fault in ONCE), 1)
    assert verdict.figures["sent"] == load.tasks
