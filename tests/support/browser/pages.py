"""Elements of the admin's pages."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.support.browser.shop import Shop

BASE = "/admin/rmq_delay"

#: Opens a page; its options are those of the fixture `open_page`.
OpenPage = Callable[..., Page]


def key(shop: Shop, task_id: str) -> int:
    """Return the number of a task's row."""
    found = shop.call("record", task_id)
    assert found is not None, task_id
    return int(found["pk"])


def open_list(page: Page, name: str, query: str = "") -> None:
    page.goto(f"{BASE}/{name}/{query}")


def open_group(page: Page, text: str, name: str = "exhaustedtask") -> None:
    """Open the list of the open tasks of the one failure group that has this text."""
    open_list(page, "failuregroup")
    page.locator("#result_list tbody tr").filter(has_text=text).locator(f'a[href*="/{name}/"]').click()


def open_task(page: Page, shop: Shop, task_id: str, name: str = "exhaustedtask") -> None:
    page.goto(f"{BASE}/{name}/{key(shop, task_id)}/change/")


def row(page: Page, shop: Shop, task_id: str) -> Locator:
    return page.locator("#result_list tbody tr").filter(has=page.locator(f'a[href*="/{key(shop, task_id)}/change/"]'))


def tick(page: Page, shop: Shop, *task_ids: str) -> None:
    for each in task_ids:
        row(page, shop, each).locator("input.action-select").check()


def choose(page: Page, action: str) -> None:
    page.locator("select[name=action]").select_option(label=action)
    page.locator(".actions button[name=index]").click()


def confirm(page: Page, action: str, reason: str, **answers: int) -> None:
    """Confirm an action on its confirmation page."""
    page.get_by_label("Why").fill(reason)
    for label, answer in answers.items():
        page.get_by_label(label.replace("_", " ")).fill(str(answer))
    page.get_by_role("button", name=action, exact=True).click()


def shows(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator(".messagelist")).to_contain_text(text)


def state(page: Page) -> Locator:
    return page.locator("#rmq-state")


def watch_until(page: Page, text: str) -> None:
    """Let the page of a task refresh by itself until it shows a state."""
    page.get_by_label("Refresh automatically").check()
    expect(state(page)).to_have_text(text)


def has_no_sideways_scroll(page: Page) -> bool:
    """Return whether the page is no wider than the window; tables may scroll."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
