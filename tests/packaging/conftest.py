from __future__ import annotations

import pytest

from tests.support.packaging.bare import Built, Environment, build, install


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel, installed with the core's dependencies only."""
    return install(built.wheel, tmp_path_factory.mktemp("bare") / "venv")
