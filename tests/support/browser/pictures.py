"""Pictures of pages, for people to look at."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.support import ROOT

FOLDER = ROOT / "test-artifacts" / "screenshots"


def shot(page: Page, name: str) -> Path:
    """Save the whole page as ``test-artifacts/screenshots/NAME.png`` and return the path."""
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path, full_page=True, animations="disabled")
    return path
