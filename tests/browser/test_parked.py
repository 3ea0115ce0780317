"""Parked tasks run now; parked and exhausted ones are discarded and restored."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.browser import inside, pages, seeds
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import Shop
from tests.support.waiting import wait_for


@pytest.mark.slow  # the list's action runs them now, too
def test_a_parked_receipt_is_sent_now(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_task(page, filled, "receipt-paid-002", "parkedtask")
    expect(pages.state(page)).to_have_text("Parked")
    assert filled.call(inside.mailed, "paid-002") == 0
    page.get_by_role("button", name="Run now", exact=True).click()
    pages.confirm(page, "Run now", "the customer is on the telephone")
    pages.shows(page, "1 sent to run now")
    pages.watch_until(page, "Recovered")
    wait_for(lambda: filled.call(inside.mailed, "paid-002") == 1, "the receipt")


def test_parked_imports_run_now_from_the_list(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "parkedtask", "?q=catalogue")
    pages.tick(page, filled, "import-north", "import-south")
    pages.choose(page, "Run now")
    expect(page.get_by_text("2 tasks", exact=True)).to_be_visible()
    pages.confirm(page, "Run now", "the supplier is back")
    pages.shows(page, "2 sent to run now")
    for each in ("import-north", "import-south"):
        seeds.be(filled, each, {"RECOVERED": 1})


def test_an_exhausted_task_is_discarded_and_restored(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "exhaustedtask", "?q=orders.gateway.InvalidCard")
    pages.tick(page, filled, "charge-stolen-001", "charge-stolen-002")
    pages.choose(page, "Discard")
    pages.confirm(page, "Discard", "the orders were cancelled")
    pages.shows(page, "2 discarded")
    expect(pages.row(page, filled, "charge-stolen-001")).to_have_count(0)
    pages.open_task(page, filled, "charge-stolen-001")
    expect(pages.state(page)).to_have_text("Discarded")
    shot(page, "discarded")
    page.get_by_role("button", name="Restore", exact=True).click()
    pages.confirm(page, "Restore", "no, they were not")
    pages.shows(page, "1 restored")
    expect(pages.state(page)).to_have_text("Exhausted")
    expect(page.get_by_text("no, they were not")).to_be_visible()
    seeds.be(filled, "charge-stolen-002", {"DISCARDED": 1})


@pytest.mark.slow  # an exhausted one is discarded and restored, too
def test_a_parked_task_is_discarded_restored_and_requeued(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_task(page, filled, "import-west", "parkedtask")
    page.get_by_role("button", name="Discard", exact=True).click()
    pages.confirm(page, "Discard", "the supplier is no more")
    pages.shows(page, "1 discarded")
    expect(pages.state(page)).to_have_text("Discarded")
    page.get_by_role("button", name="Restore", exact=True).click()
    pages.confirm(page, "Restore", "it is, under another name")
    pages.shows(page, "1 restored")
    expect(pages.state(page)).to_have_text("Exhausted")
    page.get_by_role("button", name="Requeue", exact=True).click()
    pages.confirm(page, "Requeue", "and here we go")
    pages.watch_until(page, "Recovered")
