from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.packaging.bare import Built, Environment, build, found_in, install


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The distributions in the folder that RMQ_DELAY_DIST names, below the checkout; otherwise, new ones."""
    given: str | None = os.environ.get("RMQ_DELAY_DIST")
    return found_in(Path(ROOT, given)) if given else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel, installed with the core's dependencies only."""
    return install(built.wheel, tmp_path_factory.mktemp("bare") / "venv")
