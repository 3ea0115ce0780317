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

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": WIDE},
    "dark": {"color_scheme": "dark", "viewport": WIDE},
    "narrow": {"color_scheme": "light", "viewport": PHONE},
    "narrow-dark": {"color_scheme": "dark", "viewport": PHONE},
    "narrow-rtl": {"color_scheme": "light", "viewport": PHONE, "locale": "ar"},
}

Look = Callable[[Page, str], None]
in_each_mode = pytest.mark.parametrize(
    "mode", ["light", *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES if mode != "light")]
)

#: The rules of axe that pages must keep.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
#: Markup of Django's that these pages cannot change, with the reason.
DJANGO = {
    ".breadcrumbs": "Its colours are those of Django's header.",
}


@contextmanager
def looking() -> Iterator[Look]:
    """Yield a function that takes a picture and checks layout and accessibility."""
    problems = []

    def look(page: Page, name: str) -> None:
        if not pages.has_no_sideways_scroll(page):
            problems.append(f"{name} is wider than its window")
        shot(page, name)
        options = {"runOnly": RULES, "resultTypes": ["violations"], "preload": False}
        found = Axe().run(page, context={"exclude": [[selector] for selector in DJANGO]}, options=options)
        problems.extend(f"{name}: {_described(each)}" for each in found.response["violations"])

    yield look
    assert not problems, "\n".join(problems)


def _described(violation: dict[str, Any]) -> str:
    """Return a finding of axe with the elements that it is about."""
    places = "; ".join(f"{each['target']} {each['html'][:160]}" for each in violation["nodes"][:5])
    return f"{violation['id']} ({violation['impact']}): {violation['help']}: {places}"
