"""Results of operations, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Result:
    """A result: its fields are plain data, or other results."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; times in ISO 8601, UTC."""
        return {name: _plain(value) for name, value in vars(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value
