"""The pipeline on a cluster of a master and two workers: the same command, the same tables.

The nodes have neither this package nor Celery.
"""

import json
import subprocess
import sys
import sysconfig

import pyarrow.dataset as ds
import pytest

from celery_rmq_delay.analytics import synth
from celery_rmq_delay.analytics.run import pipeline
from celery_rmq_delay.history.output import table_files
from tests.support import ROOT
from tests.support.snippets import write
from tests.support.spark.cluster import SPARK_HOME, STARTS_SOONER, environment, running_cluster
from tests.support.spark.history_files import shown

pytestmark = pytest.mark.slow  # a master, two workers, and a driver and two executors for each command

PAGE = ROOT / "docs/operate/run-analytics-anywhere.md"
CLI = (sys.executable, "-m", "celery_rmq_delay.analytics")
SMALL = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": STARTS_SOONER,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": STARTS_SOONER,
}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    synth.write(str(folder), synth.Spec(attempts=1_000, days=2, bad_rows=3), processes=1)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(place):
    with running_cluster(place) as found:
        yield found


@pytest.fixture(scope="module")
def nodes_python(place):
    """The nodes' Python: it has the libraries and not this package, which comes from a checkout by a .pth file."""
    script = place / "nodes-python"
    libraries = sysconfig.get_path("platlib")
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{libraries}" exec "{sys.executable}" -S "$@"\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def tables_of_one_machine(shared_spark, history, place):
    output = place / "local"
    work = pipeline.Run(input=str(history), output=str(output))
    shared_spark.run(lambda spark: pipeline.run(spark, work))
    return output


def conf(settings):
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def run(place, *words, **variables):
    """Run a command as a user would, in another folder than the checkout's."""
    outer = {"PYTHONPATH": str(ROOT), **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run(
        [*map(str, words)], env=environment(place) | outer, cwd=place, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def tables(output):
    """Return the rows of every table with files, as text in a fixed order, figures to nine digits."""
    names = {name: table_files(str(output), name) for name in shown(output).tables}
    return {name: sorted(str(_rounded(row)) for row in _rows(files)) for name, files in names.items() if files}


def _count(folder):
    found: int = ds.dataset(folder, format="parquet").count_rows()
    return found


def _rows(files):
    return ds.dataset(files, format="parquet", partitioning="hive").to_table().to_pylist()


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in sorted(value.items())}
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_the_same_command_gives_the_same_tables_on_a_cluster(
    cluster, history, nodes_python, tables_of_one_machine, place
):
    output = place / "cluster"
    words = ("run", "--master", cluster.url, "--input", history, "--output", output, *conf(SMALL))
    run(place, *CLI, *words, PYSPARK_PYTHON=nodes_python)
    assert len(cluster.executors()) == 2
    expected, found = tables(tables_of_one_machine), tables(output)
    assert found.keys() == expected.keys() >= {"attempts", "episodes", "tier_outcomes"}
    for name in expected:
        assert found[name] == expected[name], name


def test_spark_submit_sets_master_and_memory(cluster, history, nodes_python, place):
    write(PAGE, place, "insights.py")
    submit = (SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, *conf(SMALL), "insights.py")
    python = {"PYSPARK_PYTHON": nodes_python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    before = cluster.executors()
    described = json.loads(run(place, *submit, "describe", "--input", history, "--json", **python))
    assert sum(day["rows"] for day in described["rows"]) == _count(history)
    assert len(cluster.executors() - before) == 2
