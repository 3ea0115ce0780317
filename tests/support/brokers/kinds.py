"""Marks of costly tests: one queue type or one database is tested in the quick form."""

from __future__ import annotations

import pytest

#: For costly tests in which the type of the queue makes no difference to the package, only to the broker.
EITHER_TYPE = pytest.mark.parametrize("queue_type", ["quorum", pytest.param("classic", marks=pytest.mark.slow)])
#: For costly tests in which the database makes no difference.
EITHER_DATABASE = pytest.mark.parametrize(
    "database", ["postgres", pytest.param("sqlite", marks=pytest.mark.slow)], indirect=True
)
