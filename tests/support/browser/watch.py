"""Errors on pages, which fail any test."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Request, WebError


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
        """Allow errors that match a regular expression, such as the console's message about a 403."""
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
