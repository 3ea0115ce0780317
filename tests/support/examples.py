"""The number of examples of property tests."""

from typing import Any

from hypothesis import settings


def examples(times: float, **more: Any) -> settings:
    """Try a property with so many times the examples of the profile that the run chose."""
    return settings(max_examples=max(1, round(times * settings.default.max_examples)), **more)
