"""An exhausted payment: found by its failure group, read, requeued, seen to recover."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import inside, pages, seeds
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import ADMIN, Shop
from tests.support.waiting import wait_for


def test_an_exhausted_payment_is_found_by_its_group_requeued_and_recovers(open_page: OpenPage, filled: Shop) -> None:
    task_id = "charge-requeue-001"
    page = open_page(user=None, permissions=["clipboard-read", "clipboard-write"])
    page.goto("/admin/")
    page.get_by_label("Username:").fill(ADMIN[0])
    page.get_by_label("Password:").fill(ADMIN[1])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("main").get_by_role("link", name="Failure groups").click()
    group = page.locator("#result_list tbody tr").filter(has_text="Server error")
    expect(group).to_contain_text("orders/gateway.py")
    group.get_by_role("link", name=re.compile(r"^[0-9]+$")).first.click()
    pages.row(page, filled, task_id).get_by_role("link", name="orders.tasks.charge").click()

    expect(pages.state(page)).to_have_text("Exhausted")
    trace = page.locator(".rmq-trace")
    expect(trace.get_by_text("gateway.charge(reference=reference")).to_be_visible()
    library = trace.locator("details").filter(has_text="httpx").first
    expect(library.locator("pre")).to_be_hidden()
    library.locator("summary").click()
    expect(library.locator("pre")).to_be_visible()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("Traceback (most recent call last):")
    assert "503 Service Unavailable" in copied

    page.get_by_role("button", name="Requeue", exact=True).click()
    expect(page.get_by_text("1 task", exact=True)).to_be_visible()
    shot(page, "confirm")
    pages.confirm(page, "Requeue", "the gateway is back")
    pages.shows(page, "1 requeued")
    pages.watch_until(page, "Recovered")
    page.reload()
    expect(page.locator("#rmq-attempts")).to_contain_text("Requeue 1")
    expect(page.get_by_text("the gateway is back")).to_be_visible()
    shot(page, "requeued")
    assert filled.call(inside.charged, "requeue-001") == ["requeue-001"]
    wait_for(lambda: filled.call(inside.mailed, "requeue-001") == 1, "the receipt")


@pytest.mark.slow
def test_a_list_reports_the_outcome_for_each_task(open_page: OpenPage, filled: Shop) -> None:
    """A task that a colleague has requeued meanwhile is skipped, and the message names the colleague."""
    page = open_page()
    pages.open_group(page, "Server error")
    pages.tick(page, filled, "charge-requeue-002", "charge-requeue-003")
    other = open_page()
    pages.open_task(other, filled, "charge-requeue-002")
    other.get_by_role("button", name="Requeue", exact=True).click()
    pages.choose(page, "Requeue")
    pages.confirm(other, "Requeue", "first come")
    pages.shows(other, "1 requeued")
    pages.confirm(page, "Requeue", "second come")
    pages.shows(page, f"1 requeued, 1 skipped (already requeued by {ADMIN[0]})")
    seeds.be(filled, "charge-requeue-002", {"RECOVERED": 1})
    seeds.be(filled, "charge-requeue-003", {"RECOVERED": 1})
