"""Users with view permissions may not act, on the pages or with forged forms."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import inside, pages, seeds
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import Shop

#: A task for each kind of page.
OWN = {"exhaustedtask": "charge-forged-001", "parkedtask": "receipt-paid-003", "taskrecord": "charge-forged-001"}
FORGED = {
    "exhaustedtask": ("requeue", "requeue_gradually", "discard", "restore"),
    "parkedtask": ("run_now", "discard"),
    "taskrecord": ("requeue",),
}
ACTS = ("Requeue", "Requeue gradually", "Run now", "Discard", "Restore", "Edit and requeue", "Reveal", "Cancel")


def post(page: Page, path: str, fields: dict[str, str]) -> int:
    """Send a form as the page itself could, with the right CSRF token; return the answer's status."""
    token = next(each["value"] for each in page.context.cookies() if each["name"] == "csrftoken")
    answer = page.request.post(
        path,
        form={"csrfmiddlewaretoken": token, **fields},
        headers={"Referer": page.url},
        max_redirects=0,
    )
    return answer.status


def test_a_user_with_view_permissions_sees_no_action(open_page: OpenPage, filled: Shop) -> None:
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


def test_forged_actions_are_refused(open_page: OpenPage, filled: Shop) -> None:
    page = open_page(user=seeds.VIEWER)
    for model, actions in FORGED.items():
        pages.open_task(page, filled, OWN[model], model)
        before = filled.call(inside.record, OWN[model])
        for action in actions:
            forged = {"action": action, "_selected_action": str(before["pk"]), "index": "0"}
            for more in ({}, {"confirm": "yes", "reason": "", "draft": "1"}):
                assert post(page, f"{pages.BASE}/{model}/", {**forged, **more}) == 403, (model, action)
        assert filled.call(inside.record, OWN[model]) == before


@pytest.mark.slow
def test_without_the_token_of_a_page_nothing_is_done(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_task(page, filled, "charge-forged-002")
    before = filled.call(inside.record, "charge-forged-002")
    forged = {"action": "requeue", "_selected_action": str(before["pk"]), "confirm": "yes", "csrfmiddlewaretoken": "no"}
    answer = page.request.post(f"{pages.BASE}/exhaustedtask/", form=forged, max_redirects=0)
    assert answer.status == 403
    assert filled.call(inside.record, "charge-forged-002") == before
