"""Checks of a page: its picture, its width, and the findings of axe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.browser import pages
from tests.support.browser.pictures import shot

MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 400, "height": 850}},
}

Look = Callable[[Page, str], None]
in_each_mode = pytest.mark.parametrize(
    "mode", ["light", pytest.param("dark", marks=pytest.mark.slow), pytest.param("narrow", marks=pytest.mark.slow)]
)


@contextmanager
def looking() -> Iterator[Look]:
    """Yield a function that takes a picture and checks layout and accessibility."""
    problems = []

    def look(page: Page, name: str) -> None:
        if not pages.has_no_sideways_scroll(page):
            problems.append(f"{name} is wider than its window")
        shot(page, name)
        # The breadcrumbs have Django's colours.
        options = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"], "preload": False}
        found = Axe().run(page, context={"exclude": [[".breadcrumbs"]]}, options=options)
        if found.violations_count:
            problems.append(f"{name}:\n{found.generate_report()}")

    yield look
    assert not problems, "\n".join(problems)
