"""Pictures of pages, for people to check."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import django
from playwright.sync_api import Page

from tests.support import ROOT

#: Beside the tests, or, where that cannot be written to, among the run's temporary files, which are deleted at its end.
#: Each version of Django has a folder of its own.
FOLDER = (
    (ROOT if os.access(ROOT, os.W_OK) else Path(tempfile.gettempdir()))
    / "test-artifacts"
    / "screenshots"
    / "django-{}.{}".format(*django.VERSION)
)


def shot(page: Page, name: str) -> Path:
    """Save the whole page as ``NAME.png`` in `FOLDER` and return the path."""
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path, full_page=True, animations="disabled")
    return path
