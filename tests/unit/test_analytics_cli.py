"""The commands of the analytics where only the core of the package is installed."""

import subprocess
import sys

from celery_rmq_delay.analytics import cli
from celery_rmq_delay.analytics.synth import NAMED

#: Runs the lines of its input as commands, in a process that has nothing of the extra `spark`.
WITHOUT_SPARK = """
import sys
for missing in ("numpy", "pandas", "py4j", "pyarrow", "pyspark", "rich"):
    sys.modules[missing] = None
from click.testing import CliRunner
from celery_rmq_delay.analytics.cli import main
for line in sys.stdin.read().splitlines():
    found = CliRunner().invoke(main, line.split())
    print(found.exit_code, " ".join(found.output.split()))
"""


def answers(*lines):
    script = [sys.executable, "-c", WITHOUT_SPARK]
    done = subprocess.run(script, input="\n".join(lines), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_help_needs_no_spark_and_a_command_without_it_reports_what_to_install():
    assert {*cli.DISTRIBUTIONS} - {cli.MIXED, cli.HALF_HARD} == {*NAMED}
    first, *others = answers("--help", *(f"{name} --help" for name in cli.main.commands))
    assert first.startswith("0 Usage: ")
    assert len(others) == 4
    for name, found in zip(cli.main.commands, others, strict=True):
        assert found.startswith(f"0 Usage: main {name} [OPTIONS] "), found
    asked = ("run --input x --output y", "what-if --output y --ladder q=1s", "describe --input x", "synth --output x")
    for found in answers(*asked):
        assert found.startswith("2 Error: "), found
        assert found.endswith(" is not installed. Run pip install 'celery-rmq-delay[spark]'."), found
