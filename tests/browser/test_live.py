"""Pages refresh by themselves if the user wants it, and not while rows are ticked."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages, seeds
from tests.support.browser.pages import OpenPage
from tests.support.browser.shop import Shop

pytestmark = pytest.mark.slow


def test_refresh_is_off_until_it_is_ticked_and_pauses_while_rows_are(open_page: OpenPage, filled: Shop) -> None:
    task_id = "charge-live-002"
    page = open_page()
    page.clock.install()
    pages.open_list(page, "taskrecord", f"?q={task_id}")
    shown = pages.row(page, filled, task_id)
    expect(shown).to_contain_text("Exhausted")
    other = open_page()
    pages.open_task(other, filled, task_id)
    other.get_by_role("button", name="Requeue", exact=True).click()
    pages.confirm(other, "Requeue", "a colleague at work")
    seeds.be(filled, task_id, {"RECOVERED": 1})

    refresh = page.get_by_label("Refresh automatically")
    expect(refresh).not_to_be_checked()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    expect(shown).to_contain_text("Exhausted")
    assert asked == []

    refresh.check()
    shown.locator("input.action-select").check()
    page.clock.run_for(60_000)
    expect(page.locator("#rmq-refresh [role=status]")).to_have_text("paused")
    expect(shown).to_contain_text("Exhausted")
    assert asked == []

    shown.locator("input.action-select").uncheck()
    page.clock.run_for(15_000)
    expect(shown).to_contain_text("Recovered")
    expect(page.locator("#rmq-refresh [role=status]")).to_contain_text("updated")
    page.reload()
    expect(refresh).to_be_checked()
