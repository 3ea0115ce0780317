"""Every kind of page: in light, in dark, on a phone, for screen readers."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages
from tests.support.browser.looks import MODES, in_each_mode

pytestmark = pytest.mark.slow

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


@pytest.fixture
def drift(filled):
    """Delay queues and table differ by 1,500 tasks."""
    filled.call("add_drift", 1_500)
    yield
    filled.call("add_drift", 0)


@in_each_mode
def test_lists_and_pages_of_rows(open_page, filled, look, mode):
    page = open_page(**MODES[mode])
    for name, (title, query) in LISTS.items():
        pages.open_list(page, name, query)
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
        look(page, f"{name}-{mode}")
        if not name.endswith(("task", "record")):
            page.locator("#result_list tbody tr").last.locator("th a").click()
            expect(page.locator("#content-main .rmq-facts").first).to_be_visible()
            look(page, f"{name}-page-{mode}")
    pages.open_list(page, "exhaustedtask", "?queue=default")
    for fold in (".rmq-summary > details > summary", ".rmq-filters > summary"):
        page.locator(fold).click()
    look(page, f"exhaustedtask-open-{mode}")


@in_each_mode
def test_lists_with_notes(open_page, filled, drift, look, watch, mode):
    page = open_page(**MODES[mode])
    pages.open_list(page, "exhaustedtask", "?q=" + "x" * 1_001)
    expect(page.locator("#changelist-search .rmq-note")).to_contain_text("A search has at most")
    expect(page.locator(".rmq-summary > .rmq-warning")).to_contain_text("tasks that the table does not have")
    look(page, f"exhaustedtask-notes-{mode}")
    watch.expect("400")
    pages.open_list(page, "exhaustedtask", "?state=WRONG")
    expect(page.locator(".messagelist .error")).to_be_visible()
    look(page, f"exhaustedtask-refused-{mode}")


@in_each_mode
def test_pages_of_tasks(open_page, filled, look, mode):
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
def test_pages_that_ask(open_page, filled, look, mode):
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
    pages.open_list(page, "failuregroup")
    page.locator("#result_list button[value=discard]").first.click()
    expect(page.locator("input[name=confirm]")).to_be_visible()
    page.locator("textarea[name=reason]").fill("x" * 2_000)
    look(page, f"confirm-group-{mode}")


@in_each_mode
def test_pages_that_ask_about_unreadable_messages(open_page, filled, look, mode):
    page = open_page(**MODES[mode])
    for action in ("Drop", "Requeue"):
        pages.open_list(page, "unreadablemessage")
        page.locator("#result_list tbody th a").first.click()
        page.get_by_role("button", name=f"{action}…").click()
        expect(page.get_by_role("heading", level=1, name=action)).to_be_visible()
        look(page, f"unreadable-{action.lower()}-{mode}")
    page.locator("input[name=queue]").fill("no such queue")
    page.get_by_role("button", name="Requeue").click()
    expect(page.locator(".errorlist")).to_contain_text("no such queue")
    look(page, f"unreadable-refused-{mode}")


@in_each_mode
def test_pages_that_continue_or_undo_an_operation(open_page, filled, look, mode):
    page = open_page(**MODES[mode])
    number = filled.call("add_failed", "charge-looks-00")
    for query in ("", "?outcome=FAILED"):
        page.goto(f"{pages.BASE}/operation/{number}/change/{query}")
        expect(page.locator("#rmq-items tbody tr").first).to_be_visible()
        look(page, f"operation-failed{query[1:7]}-{mode}")
    page.get_by_role("button", name="Requeue the failed").click()
    expect(page.locator("input[name=confirm]")).to_be_visible()
    look(page, f"confirm-failed-{mode}")
    pages.open_list(page, "operation", "?kind=discard")
    page.locator("#result_list tbody tr").last.locator("th a").click()
    page.get_by_role("button", name="Undo this").click()
    expect(page.locator("input[name=confirm]")).to_be_visible()
    look(page, f"confirm-undo-{mode}")
