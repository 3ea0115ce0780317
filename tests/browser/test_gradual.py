"""Three hundred payments go back gradually: canaries first, then at a rate, until a user cancels."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import inside, pages, seeds
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import Shop
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


def operation_of(page: Page) -> int:
    found = re.search(r"/operation/([0-9]+)/change/", page.url)
    assert found is not None, page.url
    return int(found[1])


def test_300_are_requeued_gradually_and_cancelled_on_the_way(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "failuregroup")
    group = page.locator("#result_list tbody tr").filter(has_text="Client error")
    group.get_by_role("link", name=str(seeds.LIMITED), exact=True).click()
    page.get_by_label("Select all objects on this page for an action").check()
    page.get_by_role("button", name=f"Select all: {seeds.LIMITED}").click()
    pages.choose(page, "Requeue gradually")
    expect(page.get_by_text(f"{seeds.LIMITED} tasks", exact=True)).to_be_visible()
    shot(page, "confirm-gradual")
    pages.confirm(page, "Requeue gradually", "the gateway takes more", Canaries=5, Per_minute=600)

    wait_for(lambda: done(filled, page) >= 20, "20 requeued")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#content")).to_contain_text("Cancelled")
    shot(page, "operation-cancelled")
    number = operation_of(page)
    operation = filled.call(inside.operation, number)
    ok = operation["ok"]
    assert operation == {
        "kind": "requeue", "state": "CANCELLED", "actor": "admin", "reason": "the gateway takes more", "requested": 300,
        "ok": ok, "skipped": 0, "failed": 0, "unknown": 0, "canary": 5, "rate": 600,
    }  # fmt: skip
    assert 20 <= ok < 300
    expect(page.locator("#content")).to_contain_text(f"{ok} requeued, {300 - ok} cancelled")
    # The page, the database and the gateway agree.
    seeds.be(filled, "charge-limited", {"RECOVERED": ok, "EXHAUSTED": 300 - ok})
    assert len(filled.call(inside.charged, "limited")) == ok
    pages.open_list(page, "failuregroup")
    expect(group.get_by_role("link", name=str(300 - ok), exact=True)).to_be_visible()


def done(shop: Shop, page: Page) -> int:
    return int(shop.call(inside.operation, operation_of(page))["ok"])


@pytest.mark.slow
def test_canaries_that_fail_again_stop_the_run(open_page: OpenPage, filled: Shop) -> None:
    filled.call(inside.partner_is, "payments", "down")
    try:
        page = open_page()
        pages.open_group(page, "Server error")
        pages.tick(page, filled, *(f"charge-canary-00{number}" for number in range(1, 9)))
        pages.choose(page, "Requeue gradually")
        pages.confirm(page, "Requeue gradually", "is it back?", Canaries=2, Per_minute=600)
        stopped = re.compile("2 requeued, 6 cancelled. . of 2 canaries .* again.*: the rest was not sent")
        expect(page.locator("#rmq-progress")).to_contain_text(stopped)
        shot(page, "operation-canaries")
        seeds.be(filled, "charge-canary", {"EXHAUSTED": 8})
        generations = [filled.call(inside.record, f"charge-canary-00{n}")["generation"] for n in range(1, 9)]
        assert sorted(generations) == [0, 0, 0, 0, 0, 0, 1, 1]
    finally:
        filled.call(inside.partner_is, "payments", "up")
