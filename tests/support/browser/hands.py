"""How a user works: with a mouse, or with the keyboard alone."""

from __future__ import annotations

from playwright.sync_api import Page, expect


def tab_to(page: Page, selector: str, most: int = 120) -> None:
    """Press Tab until the element that a selector names has the focus."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} was not reached with {most} tabs")


class Mouse:
    """Works with clicks, and counts them."""

    def __init__(self, page: Page) -> None:
        self.page, self.count = page, 0

    def press(self, selector: str) -> None:
        self.count += 1
        self.page.locator(selector).click()

    def write(self, selector: str, text: str) -> None:
        self.press(selector)
        self.page.keyboard.type(text)


class Keyboard(Mouse):
    """Works with Tab, Enter and letters; counts decisions, which are clicks with a mouse."""

    def press(self, selector: str) -> None:
        self.count += 1
        self._reach(selector)
        self.page.keyboard.press("Enter")

    def write(self, selector: str, text: str) -> None:
        self._reach(selector)
        self.page.keyboard.type(text)

    def _reach(self, selector: str) -> None:
        expect(self.page.locator(selector)).to_be_visible()  # the page has been loaded
        tab_to(self.page, selector)
