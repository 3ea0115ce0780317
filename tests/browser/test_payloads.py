"""Arguments: hidden, revealed, edited."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.browser import inside, pages
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import ADMIN, Shop

CARD = "4929 1234 5678 9012"


def test_a_secret_is_hidden_until_it_is_revealed(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_task(page, filled, "charge-secret")
    expect(page.locator("#content")).to_contain_text("[redacted]")
    expect(page.locator("#content")).to_contain_text("call first")
    assert CARD not in page.content()
    shot(page, "redacted")
    page.get_by_role("button", name="Reveal").click()
    expect(page.locator("#content")).to_contain_text(CARD)
    shot(page, "revealed")
    pages.open_task(page, filled, "charge-secret")
    assert CARD not in page.content()
    page.get_by_role("link", name="History").click()
    expect(page.locator("#content")).to_contain_text(ADMIN[0])
    expect(page.locator("#content")).to_contain_text("Message revealed")
    assert CARD not in page.content()


def test_wrong_arguments_are_edited_and_the_task_recovers(open_page: OpenPage, filled: Shop) -> None:
    filled.call(inside.order, "edited", 1)
    page = open_page()
    pages.open_task(page, filled, "charge-edit")
    page.get_by_role("button", name="Edit and requeue").click()
    arguments = page.get_by_label("Arguments:", exact=True)
    expect(arguments).to_have_value(re.compile(r'^\[\s*"edit-0001"\s*\]$'))
    arguments.fill('["edited-001"')
    page.get_by_label("Why").fill("a typing error")
    page.get_by_role("button", name="Requeue with these arguments").click()
    expect(page.locator(".errorlist")).to_contain_text("JSON")
    shot(page, "edit")
    arguments.fill('["edited-001"]')
    page.get_by_role("button", name="Requeue with these arguments").click()
    pages.shows(page, "1 edited and requeued")
    pages.watch_until(page, "Recovered")
    record = filled.call(inside.record, "charge-edit")
    assert record["generation"] == 1
    page.goto(f"{pages.BASE}/operation/")
    page.locator("#result_list tbody tr").filter(has_text="a typing error").get_by_role("link").first.click()
    expect(page.locator("#content")).to_contain_text("edit-0001")
    expect(page.locator("#content")).to_contain_text("edited-001")
    shot(page, "operation-edit")
