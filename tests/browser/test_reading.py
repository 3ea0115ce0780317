"""Pages for reading: hostile text stays text, viewers see no button that acts, pages refresh by themselves."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages, seeds
from tests.support.browser.looks import shot


def test_hostile_arguments_stay_text_on_pages_and_in_lists(page, filled):
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


#: A task for each kind of page.
OWN = {"exhaustedtask": "charge-forged-001", "parkedtask": "receipt-paid-003", "taskrecord": "charge-forged-001"}
ACTS = ("Requeue", "Requeue gradually", "Run now", "Discard", "Restore", "Edit and requeue", "Reveal", "Cancel")


def test_a_user_with_view_permissions_sees_no_action(open_page, filled):
    page = open_page(user=seeds.VIEWER)
    for name in ("exhaustedtask", "parkedtask", "taskrecord", "failuregroup"):
        pages.open_list(page, name)
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
        offered = page.locator("select[name=action]").locator("option").all_inner_texts()
        assert not set(ACTS) & set(offered), offered
    for name, task_id in OWN.items():
        pages.open_task(page, filled, task_id, name)
        for act in ACTS:
            expect(page.get_by_role("button", name=act, exact=True)).to_have_count(0)
    shot(page, "viewer")


@pytest.mark.slow
def test_refresh_is_off_until_it_is_ticked_and_pauses_while_rows_are(open_page, filled):
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
