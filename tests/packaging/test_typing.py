"""The types that a user of the installed package sees."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.packaging.bare import install


@pytest.fixture(scope="module")
def typed(built, tmp_path_factory):
    """The wheel, with the stubs of Celery that a project which checks its types has, and pytest for its tests."""
    return install(built.wheel, tmp_path_factory.mktemp("typed") / "venv", "celery-types", "pytest")


def test_a_project_that_uses_the_public_names_passes_mypy_strict(typed, tmp_path):
    shutil.copy(ROOT / "tests/support/packaging/public_api.py", tmp_path)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(typed.python), "public_api.py"]
    done = subprocess.run(
        [*command, "--config-file", os.devnull, "--cache-dir", os.devnull],
        cwd=tmp_path,
        env=typed.variables(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
