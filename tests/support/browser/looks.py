"""Checks of a page: its picture, its width, the findings of axe, and errors, which fail any test."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request, WebError

from tests.support import ROOT

#: Beside the tests, or, where that cannot be written to, among the run's temporary files, which are deleted at its end.
#: Each version of Django has a folder of its own.
FOLDER = (
    (ROOT if os.access(ROOT, os.W_OK) else Path(tempfile.gettempdir()))
    / "test-artifacts"
    / "screenshots"
    / "django-{}.{}".format(*django.VERSION)
)
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


def shot(page: Page, name: str) -> Path:
    """Save the whole page as ``NAME.png`` in `FOLDER` and return the path."""
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path, full_page=True, animations="disabled")
    return path


def described(violation: dict[str, Any]) -> str:
    """Return a finding of axe with the elements that it is about."""
    places = "; ".join(f"{each['target']} {each['html'][:160]}" for each in violation["nodes"][:5])
    return f"{violation['id']} ({violation['impact']}): {violation['help']}: {places}"


class Watch:
    """Collects errors on the console, uncaught exceptions, dialogs, and requests to other hosts than the shop's."""

    def __init__(self) -> None:
        self._shops: set[str] = set()
        self._seen: list[str] = []
        self._expected: list[str] = []

    def over(self, context: BrowserContext, shop_url: str) -> None:
        """Watch the pages of a browser context of the shop at this address."""
        self._shops.add(urlsplit(shop_url).netloc)
        context.on("console", self._console)
        context.on("weberror", self._web_error)
        context.on("dialog", self._dialog)
        context.on("request", self._request)

    def expect(self, pattern: str) -> None:
        self._expected.append(pattern)

    @property
    def problems(self) -> list[str]:
        """Unexpected errors, and expected errors that did not occur."""
        unexpected = [seen for seen in self._seen if not any(re.search(pattern, seen) for pattern in self._expected)]
        missing = [pattern for pattern in self._expected if not any(re.search(pattern, seen) for seen in self._seen)]
        return [*unexpected, *(f"expected, but not seen: {pattern}" for pattern in missing)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            place = message.location
            self._seen.append(f"console: {message.text} ({place.get('url')}:{place.get('lineNumber')})")

    def _web_error(self, error: WebError) -> None:
        self._seen.append(f"exception: {error.error}")

    def _dialog(self, dialog: Dialog) -> None:
        self._seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in {"data", "blob", "about"} and address.netloc not in self._shops:
            self._seen.append(f"request to another host: {request.method} {request.url}")
