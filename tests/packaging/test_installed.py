"""The wheel in an environment with the core's dependencies only."""

import re

import pytest

from tests.support import ROOT
from tests.support.processes import running_worker
from tests.support.snippets import write

#: Imports every module of the core; the modules that the core does not need.
IMPORTS = """
import importlib, pkgutil, sys
import celery_rmq_delay

assert celery_rmq_delay.__file__.startswith(sys.prefix), celery_rmq_delay.__file__
parts = ("contrib", "analytics", "testing", "history.schema")
for each in pkgutil.walk_packages(celery_rmq_delay.__path__, "celery_rmq_delay."):
    if not each.name.removeprefix("celery_rmq_delay.").startswith(parts):
        importlib.import_module(each.name)
import celery_rmq_delay.testing.servers.broker
wrong = {"django", "pyspark", "pytest", "httpx", "pyarrow", "pandas", "prometheus_client"} & set(sys.modules)
assert not wrong, wrong
print(len([name for name in sys.modules if name.startswith("celery_rmq_delay.")]))
"""


@pytest.mark.versions
def test_the_core_is_imported_without_any_extra(bare, tmp_path):
    done = bare.run("-c", IMPORTS, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) > 60


@pytest.mark.versions
def test_the_celery_command_has_ours(bare, tmp_path):
    write(ROOT / "docs/start/quickstart.md", tmp_path, "shop.py")
    done = bare.run("-m", "celery", "-A", "shop", "rmq-delay", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    for command in ("plan", "apply", "status", "doctor", "exhausted"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.versions
def test_the_analytics_name_the_extra_that_they_need(bare, tmp_path):
    done = bare.run("-m", "celery_rmq_delay.analytics", "run", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    done = bare.run("-m", "celery_rmq_delay.analytics", "describe", "--input", "history", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.endswith(" is not installed. Run pip install 'celery-rmq-delay[spark]'.\n")


@pytest.mark.slow
def test_the_demo_runs_with_a_private_broker(bare, tmp_path):
    done = bare.run("-m", "celery_rmq_delay", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "12 recovered after 1 to 3 retries, 3 are exhausted." in done.stdout
    assert re.search(r"Meanwhile the worker held \d+ tasks while \d+ waited in RabbitMQ", done.stdout)
    assert list(tmp_path.iterdir()) == []
    (command,) = re.findall(r"celery (-A celery_rmq_delay\..*)", done.stdout)
    proposed = bare.run("-m", "celery", *command.split(), cwd=tmp_path)
    assert "PARKED" in proposed.stdout.upper(), proposed.stdout


@pytest.mark.versions
def test_a_task_advances_through_its_ladder_and_the_doctor_has_only_notes(bare, rmq_vhost, tmp_path):
    write(ROOT / "docs/start/quickstart.md", tmp_path, "shop.py", "send.py")
    environ, python = bare.variables(BROKER_URL=rmq_vhost), str(bare.python)
    with running_worker(tmp_path, "shop", environ, "--pool", "solo", python=python):
        sent = bare.run("send.py", cwd=tmp_path, BROKER_URL=rmq_vhost)
        doctor = bare.run("-m", "celery", "-A", "shop", "rmq-delay", "doctor", cwd=tmp_path, BROKER_URL=rmq_vhost)
    assert sent.stdout == "order 7 charged after 2 retries\n", sent.stdout
    assert doctor.returncode == 0, doctor.stdout
    assert "note: management API: The management API needs httpx." in doctor.stdout
    assert "`celery -A shop rmq-delay exhausted list`" in doctor.stdout
