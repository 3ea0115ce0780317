"""Failure groups: a note, a mute, and their tasks as a file."""

from __future__ import annotations

import csv
import json

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages
from tests.support.browser.pages import OpenPage
from tests.support.browser.shop import Shop

pytestmark = pytest.mark.slow


def test_a_group_gets_a_note_and_is_muted(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "failuregroup")
    group = page.locator("#result_list tbody tr").filter(has_text="KeyError")
    group.get_by_role("link").first.click()
    page.get_by_label("Note").fill("A key of the report has changed: SHOP-77")
    page.get_by_role("button", name="Save").click()
    pages.shows(page, "The note was saved.")
    page.get_by_role("button", name="Mute").click()
    pages.shows(page, "1 group muted.")
    pages.open_list(page, "failuregroup")
    expect(group).to_contain_text("SHOP-77")
    expect(group).to_contain_text("muted")


def test_tasks_are_exported_redacted_or_not(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_list(page, "exhaustedtask", "?q=charge-secret")
    pages.tick(page, filled, "charge-secret")
    with page.expect_download() as download:
        pages.choose(page, "Export as JSON lines")
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert [line["task_id"] for line in lines] == ["charge-secret"]
    pages.open_list(page, "exhaustedtask", "?q=KeyError")
    page.get_by_label("Select all objects on this page for an action").check()
    with page.expect_download() as download:
        pages.choose(page, "Export as CSV")
    with download.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"report-2026-06-01", "report-2026-06-02", "report-2026-06-03"} <= {row["task_id"] for row in rows}
