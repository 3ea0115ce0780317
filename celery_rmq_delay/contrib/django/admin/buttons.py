"""A button that starts an action on rows, or changes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Button:
    """A button that sends ``name`` and ``value`` to ``url``, which asks for a confirmation where one is needed."""

    url: str
    name: str
    value: str
    label: str
    css: str = "button"
    #: The ids of the rows that it selects; without them, all rows of the URL's filters.
    rows: tuple[int, ...] = ()
