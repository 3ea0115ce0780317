"""Who may see may not yet act: neither on the pages nor past them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser import inside, pages
from tests.browser.conftest import OpenPage
from tests.browser.pictures import shot
from tests.browser.shop import Shop

VIEWER = "viewer"
ACTS = ("Requeue", "Requeue gradually", "Run now", "Discard", "Restore", "Edit and requeue", "Reveal", "Cancel")


@pytest.fixture(scope="package")
def viewer(filled: Shop) -> str:
    """A user who may see everything and do nothing."""
    models = ("taskrecord", "parkedtask", "exhaustedtask", "failuregroup", "operation")
    filled.call(inside.add_user, VIEWER, [f"view_{model}" for model in models])
    return VIEWER


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


def test_who_may_only_look_sees_no_action(open_page: OpenPage, filled: Shop, viewer: str) -> None:
    page = open_page(user=viewer)
    for name in ("exhaustedtask", "parkedtask", "taskrecord", "failuregroup"):
        pages.open_list(page, name)
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
        offered = page.locator("select[name=action]").locator("option").all_inner_texts()
        assert not set(ACTS) & set(offered), offered
    for task_id, name in (("charge-forged-001", "exhaustedtask"), ("receipt-paid-003", "parkedtask")):
        pages.open_task(page, filled, task_id, name)
        for act in ACTS:
            expect(page.get_by_role("button", name=act, exact=True)).to_have_count(0)
    shot(page, "viewer")


@pytest.mark.parametrize(
    ("model", "task_id", "action"),
    [
        ("exhaustedtask", "charge-forged-001", "requeue"),
        ("exhaustedtask", "charge-forged-001", "requeue_gradually"),
        ("exhaustedtask", "charge-forged-001", "discard"),
        ("exhaustedtask", "charge-forged-001", "restore"),
        ("parkedtask", "receipt-paid-003", "run_now"),
        ("parkedtask", "receipt-paid-003", "discard"),
        ("taskrecord", "charge-forged-001", "requeue"),
    ],
)
def test_a_forged_action_is_refused(
    open_page: OpenPage, filled: Shop, viewer: str, model: str, task_id: str, action: str
) -> None:
    page = open_page(user=viewer)
    pages.open_task(page, filled, task_id, model)
    before = filled.call(inside.record, task_id)
    forged = {"action": action, "_selected_action": str(before["pk"]), "index": "0"}
    for more in ({}, {"confirm": "yes", "reason": "", "as_of": "2036-01-01T00:00:00+00:00", "expected": "1"}):
        assert post(page, f"{pages.BASE}/{model}/", {**forged, **more}) == 403
    assert filled.call(inside.record, task_id) == before


def test_without_the_token_of_a_page_nothing_is_done(open_page: OpenPage, filled: Shop) -> None:
    page = open_page()
    pages.open_task(page, filled, "charge-forged-002")
    before = filled.call(inside.record, "charge-forged-002")
    forged = {"action": "requeue", "_selected_action": str(before["pk"]), "confirm": "yes", "csrfmiddlewaretoken": "no"}
    answer = page.request.post(f"{pages.BASE}/exhaustedtask/", form=forged, max_redirects=0)
    assert answer.status == 403
    assert filled.call(inside.record, "charge-forged-002") == before
