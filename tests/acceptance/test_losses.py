"""Leftovers of a failed test in shared workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.losses import run_alone

LEAVES = """
from tests.support.waiting import wait_for

def test_that_fails_while_its_task_is_parked(running_classic):
    running_classic.task("fails").delay(99)
    wait_for(running_classic.attempts)
    assert False

def test_after_it(running_classic):
    result = running_classic.task("fails").delay(99)
    wait_for(lambda: running_classic.count("rmq_delay.exhausted"))
    (message,) = running_classic.take("rmq_delay.exhausted")
    assert message.headers["id"] == result.id
    assert {line["id"] for line in running_classic.attempts()} == {result.id}
"""


@pytest.mark.slow
def test_the_tasks_of_a_failed_test_are_no_part_of_the_next_one(tmp_path: Path) -> None:
    outcomes, output = run_alone(Path(__file__).with_name("conftest.py"), LEAVES, tmp_path)
    assert outcomes == {"FAILED": {"test_that_fails_while_its_task_is_parked"}, "PASSED": {"test_after_it"}}, output
