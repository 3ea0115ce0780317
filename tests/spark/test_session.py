"""The session that the other tests share."""

import re
from pathlib import Path

import pytest

from tests.support.losses import run_alone

LOSSES = {"test_that_loses_it", "test_that_takes_too_long", "test_whose_context_stops"}
LOSES_ITS_MACHINE = """
import os, signal
import pytest
from pyspark import SparkContext

def kill():
    SparkContext._gateway.proc.send_signal(signal.SIGKILL)

@pytest.fixture(scope="module")
def counted(shared_spark):
    def count(spark):
        if not killed:
            killed.append(kill())
        return spark.range(3).count()
    killed = []
    return shared_spark.run(count)

def test_that_uses_it(counted, spark):
    assert counted == spark.range(3).count() == 3

def test_that_loses_it(spark):
    kill()
    spark.range(3).count()

def test_that_kills_it_in_its_last_line(spark):
    kill()

def test_that_takes_too_long(shared_spark):
    with shared_spark.limited(3) as spark:
        spark.range(10**13).selectExpr("max(hash(id))").collect()

def test_whose_context_stops(spark):
    spark._jsc.sc().stop()
    spark.range(3).count()

def test_after_them(spark):
    assert spark.range(3).count() == 3
"""


@pytest.mark.slow
def test_a_lost_java_machine_fails_one_test_and_is_reported_once(tmp_path):
    outcomes, output = run_alone(Path(__file__).with_name("conftest.py"), LOSES_ITS_MACHINE, tmp_path)
    # At the end of the session: the losses.
    passed = {"test_after_them", "test_that_kills_it_in_its_last_line", "test_that_uses_it"}
    expected = {"ERROR": {"test_after_them"}, "FAILED": LOSSES, "PASSED": passed}
    assert outcomes == expected, output
    losses = len(LOSSES) + 2  # one in a fixture, which starts again, and one in the last line
    assert len(re.findall(r"^E .*Java machine ended with -9", output, re.M)) == losses, output
