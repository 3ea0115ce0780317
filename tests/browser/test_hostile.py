"""Arguments and errors that came with messages are text, whatever is in them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser import pages, seeds
from tests.browser.conftest import OpenPage
from tests.browser.pictures import shot
from tests.browser.shop import Shop


@pytest.mark.parametrize("name", seeds.HOSTILE)
def test_hostile_arguments_stay_text(open_page: OpenPage, filled: Shop, name: str) -> None:
    page = open_page()
    pages.open_task(page, filled, f"hostile-{name}")
    expect(page.get_by_role("heading", name="orders.tasks.sales_report")).to_be_visible()
    assert page.locator("#content script, #content img, #content [onmouseover]").count() == 0
    assert pages.has_no_sideways_scroll(page)
    assert len(page.content()) < 300_000
    shot(page, f"hostile-{name}")


def test_a_list_with_hostile_tasks_stays_text(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "exhaustedtask", "?q=orders.tasks.sales_report")
    expect(pages.row(page, filled, "hostile-script")).to_contain_text("<script>alert(")
    assert page.locator("#result_list script, #result_list img, #result_list [onmouseover]").count() == 0
    shot(page, "hostile-list")
