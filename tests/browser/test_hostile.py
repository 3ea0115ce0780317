"""Any arguments and errors of messages are shown as text."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.browser import pages, seeds
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import Shop


def test_hostile_arguments_stay_text_on_pages_and_in_lists(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    for name in seeds.HOSTILE:
        pages.open_task(page, filled, f"hostile-{name}")
        expect(page.get_by_role("heading", name="orders.tasks.sales_report")).to_be_visible()
        assert page.locator("#content script, #content img, #content [onmouseover]").count() == 0, name
        assert pages.has_no_sideways_scroll(page), name
        assert len(page.content()) < 300_000, name
        shot(page, f"hostile-{name}")
    pages.open_list(page, "exhaustedtask", "?q=orders.tasks.sales_report")
    expect(pages.row(page, filled, "hostile-script")).to_contain_text("<script>alert(")
    assert page.locator("#result_list script, #result_list img, #result_list [onmouseover]").count() == 0
    shot(page, "hostile-list")
