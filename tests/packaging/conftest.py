import os
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.packaging.bare import build, found_in, install


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The distributions in the folder that RMQ_DELAY_DIST names, below the checkout; otherwise, new ones."""
    given: str | None = os.environ.get("RMQ_DELAY_DIST")
    return found_in(Path(ROOT, given)) if given else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare(built, tmp_path_factory):
    """The wheel, installed with the core's dependencies only."""
    return install(built.wheel, tmp_path_factory.mktemp("bare") / "venv")
