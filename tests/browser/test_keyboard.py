"""The main actions without a mouse."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.support.browser import inside, pages, seeds
from tests.support.browser.hands import tab_to
from tests.support.browser.pages import OpenPage
from tests.support.browser.shop import Shop


def test_a_task_is_requeued_with_the_keyboard_alone(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "exhaustedtask", "?q=charge-keys-001")
    key = pages.key(filled, "charge-keys-001")
    tab_to(page, f"#result_list a[href*='/{key}/change/']")
    page.keyboard.press("Enter")
    expect(pages.state(page)).to_have_text("Exhausted")
    tab_to(page, "button[value=requeue]")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 task", exact=True)).to_be_visible()
    tab_to(page, "textarea[name=reason]")
    page.keyboard.type("no mouse at hand")
    tab_to(page, "input[name=confirm]")
    page.keyboard.press("Enter")
    pages.shows(page, "1 requeued")
    seeds.be(filled, "charge-keys-001", {"RECOVERED": 1})


def test_rows_are_ticked_and_folds_opened_with_the_keyboard(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "exhaustedtask", "?q=charge-keys-002")
    key = pages.key(filled, "charge-keys-002")
    tab_to(page, f"input.action-select[value='{key}']")
    page.keyboard.press("Space")
    expect(page.locator(f"input.action-select[value='{key}']")).to_be_checked()
    pages.open_task(page, filled, "charge-keys-002")
    tab_to(page, ".rmq-trace summary")
    page.keyboard.press("Enter")
    expect(page.locator(".rmq-trace details[open]")).to_have_count(1)


def test_a_group_of_300_is_discarded_from_the_list_of_groups_with_the_keyboard_alone(
    open_page: OpenPage, filled: Shop
) -> None:
    group = filled.call(inside.add_exhausted, "keyed", 300, "shop.errors.KeyedError")
    page = open_page()
    pages.open_list(page, "failuregroup")
    in_row = f"#result_list button[formaction$='?group={group}']"
    for value in ("requeue", "requeue_gradually", "discard"):
        tab_to(page, f"{in_row}[value='{value}']")
    page.keyboard.press("Enter")
    expect(page.get_by_text("300 tasks", exact=True)).to_be_visible()
    tab_to(page, "textarea[name=reason]")
    page.keyboard.type("never needed")
    tab_to(page, "input[name=confirm]")
    page.keyboard.press("Enter")
    pages.shows(page, "300 discarded")
    expect(page).to_have_url(re.compile("/failuregroup/$"))
    seeds.be(filled, "keyed", {"DISCARDED": 300})
    expect(page.locator("#result_list")).not_to_contain_text("KeyedError")
