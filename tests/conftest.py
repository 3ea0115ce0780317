"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

FOLDERS = {"integration", "acceptance"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by their folder, so that ``-m integration`` needs no mark in each file."""
    here = Path(__file__).parent
    for item in items:
        if (folder := item.path.relative_to(here).parts[0]) in FOLDERS:
            item.add_marker(folder)
