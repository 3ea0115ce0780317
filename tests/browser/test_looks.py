"""Every kind of page: in light, in dark, on a phone, for screen readers."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.browser import pages
from tests.support.browser.looks import MODES, Look, in_each_mode
from tests.support.browser.pages import OpenPage
from tests.support.browser.shop import Shop

#: Each with a filter that keeps it short: the pictures show the page.
LISTS = {
    "failuregroup": ("Failure groups", ""),
    "exhaustedtask": ("Exhausted tasks", "?queue=default"),
    "parkedtask": ("Parked tasks", "?queue=mail"),
    "taskrecord": ("Retried tasks", "?state=RECOVERED"),
    "operation": ("Operations", ""),
    "collectorstatus": ("Collectors", ""),
    "unreadablemessage": ("Unreadable messages", ""),
}


@in_each_mode
def test_lists(open_page: OpenPage, filled: Shop, look: Look, mode: str) -> None:
    page = open_page(**MODES[mode])
    for name, (title, query) in LISTS.items():
        pages.open_list(page, name, query)
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
        look(page, f"{name}-{mode}")
    pages.open_list(page, "exhaustedtask", "?queue=default")
    for fold in (".rmq-summary > details > summary", ".rmq-filters > summary"):
        page.locator(fold).click()
    look(page, f"exhaustedtask-open-{mode}")


@in_each_mode
def test_pages_of_tasks(open_page: OpenPage, filled: Shop, look: Look, mode: str) -> None:
    page = open_page(**MODES[mode])
    for what, task_id, name in (
        ("exhausted", "charge-looks-001", "exhaustedtask"),
        ("discarded", "charge-looks-004", "exhaustedtask"),
        ("parked", "receipt-paid-001", "parkedtask"),
        ("recovered", "charge-late-001", "taskrecord"),
    ):
        pages.open_task(page, filled, task_id, name)
        expect(pages.state(page)).to_have_text(what.capitalize())
        look(page, f"{what}-{mode}")
    page.locator(".historylink").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    look(page, f"history-{mode}")


@in_each_mode
def test_pages_of_other_rows(open_page: OpenPage, filled: Shop, look: Look, mode: str) -> None:
    page = open_page(**MODES[mode])
    for name in ("failuregroup", "operation", "collectorstatus", "unreadablemessage"):
        pages.open_list(page, name)
        page.locator("#result_list tbody tr").last.locator("th a").click()
        expect(page.locator("#content-main .rmq-facts").first).to_be_visible()
        look(page, f"{name}-page-{mode}")


@in_each_mode
def test_pages_that_ask(open_page: OpenPage, filled: Shop, look: Look, mode: str) -> None:
    page = open_page(**MODES[mode])
    pages.open_group(page, "Server error")
    pages.tick(page, filled, "charge-looks-001", "charge-looks-002")
    pages.choose(page, "Requeue gradually")
    expect(page.get_by_text("2 tasks", exact=True)).to_be_visible()
    look(page, f"confirm-gradual-{mode}")
    pages.open_task(page, filled, "charge-looks-001")
    page.get_by_role("button", name="Edit and requeue").click()
    expect(page.get_by_label("Arguments:", exact=True)).to_be_visible()
    look(page, f"edit-{mode}")
