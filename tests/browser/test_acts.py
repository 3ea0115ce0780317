"""Tasks are requeued at once or gradually, run now, discarded, restored, revealed and edited, and seen to recover."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages, seeds
from tests.support.browser.looks import shot
from tests.support.browser.shop import ADMIN
from tests.support.waiting import wait_for


def test_an_exhausted_payment_is_found_by_its_group_requeued_and_recovers(open_page, filled):
    task_id = "charge-requeue-001"
    page = open_page(user=None, permissions=["clipboard-read", "clipboard-write"])
    page.goto("/admin/")
    page.get_by_label("Username:").fill(ADMIN[0])
    page.get_by_label("Password:").fill(ADMIN[1])
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("main").get_by_role("link", name="Failure groups").click()
    group = page.locator("#result_list tbody tr").filter(has_text="Server error")
    expect(group).to_contain_text("orders/gateway.py")
    group.get_by_role("link", name=re.compile(r"^[0-9]+$")).first.click()
    pages.row(page, filled, task_id).get_by_role("link", name="orders.tasks.charge").click()

    expect(pages.state(page)).to_have_text("Exhausted")
    trace = page.locator(".rmq-trace")
    expect(trace.get_by_text("gateway.charge(reference=reference")).to_be_visible()
    library = trace.locator("details").filter(has_text="httpx").first
    expect(library.locator("pre")).to_be_hidden()
    library.locator("summary").click()
    expect(library.locator("pre")).to_be_visible()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("Traceback (most recent call last):")
    assert "503 Service Unavailable" in copied

    page.get_by_role("button", name="Requeue", exact=True).click()
    expect(page.get_by_text("1 task", exact=True)).to_be_visible()
    shot(page, "confirm")
    pages.confirm(page, "Requeue", "the gateway is back")
    pages.shows(page, "1 requeued")
    pages.watch_until(page, "Recovered")
    page.reload()
    expect(page.locator("#rmq-attempts")).to_contain_text("Requeue 1")
    expect(page.get_by_text("the gateway is back")).to_be_visible()
    shot(page, "requeued")
    assert filled.call("charged", "requeue-001") == ["requeue-001"]
    wait_for(lambda: filled.call("mailed", "requeue-001") == 1, "the receipt")


def test_parked_imports_run_now_from_the_list(page, filled):
    pages.open_list(page, "parkedtask", "?q=catalogue")
    pages.tick(page, filled, "import-north", "import-south")
    pages.choose(page, "Run now")
    expect(page.get_by_text("2 tasks", exact=True)).to_be_visible()
    pages.confirm(page, "Run now", "the supplier is back")
    pages.shows(page, "2 sent to run now")
    for each in ("import-north", "import-south"):
        seeds.be(filled, each, {"RECOVERED": 1})


def test_an_exhausted_task_is_discarded_and_restored(page, filled):
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


CARD = "4929 1234 5678 9012"


def test_a_secret_is_hidden_until_it_is_revealed(page, filled):
    pages.open_task(page, filled, "charge-secret")
    expect(page.locator("#content")).to_contain_text("[redacted]")
    expect(page.locator("#content")).to_contain_text("call first")
    assert CARD not in page.content()
    shot(page, "redacted")
    page.get_by_role("button", name="Reveal").click()
    expect(page.locator("#content")).to_contain_text(CARD)
    shot(page, "revealed")
    pages.open_task(page, filled, "charge-secret")
    assert CARD not in page.content()
    page.get_by_role("link", name="History").click()
    expect(page.locator("#content")).to_contain_text(ADMIN[0])
    expect(page.locator("#content")).to_contain_text("Message revealed")
    assert CARD not in page.content()


def test_wrong_arguments_are_edited_and_the_task_recovers(page, filled):
    filled.call("order", "edited", 1)
    pages.open_task(page, filled, "charge-edit")
    page.get_by_role("button", name="Edit and requeue").click()
    arguments = page.get_by_label("Arguments:", exact=True)
    expect(arguments).to_have_value(re.compile(r'^\[\s*"edit-0001"\s*\]$'))
    arguments.fill('["edited-001"')
    page.get_by_label("Why").fill("a typing error")
    page.get_by_role("button", name="Requeue with these arguments").click()
    expect(page.locator(".errorlist")).to_contain_text("JSON")
    shot(page, "edit")
    arguments.fill('["edited-001"]')
    page.get_by_role("button", name="Requeue with these arguments").click()
    pages.shows(page, "1 edited and requeued")
    pages.watch_until(page, "Recovered")
    record = filled.call("record", "charge-edit")
    assert record["generation"] == 1
    page.goto(f"{pages.BASE}/operation/")
    page.locator("#result_list tbody tr").filter(has_text="a typing error").get_by_role("link").first.click()
    expect(page.locator("#content")).to_contain_text("edit-0001")
    expect(page.locator("#content")).to_contain_text("edited-001")
    shot(page, "operation-edit")


def operation_of(page):
    found = re.search(r"/operation/([0-9]+)/change/", page.url)
    assert found is not None, page.url
    return int(found[1])


@pytest.mark.slow
def test_300_are_requeued_gradually_and_cancelled_on_the_way(page, filled):
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
    operation = filled.call("operation", number)
    ok = operation["ok"]
    assert operation == {
        "kind": "requeue", "state": "CANCELLED", "actor": "admin", "reason": "the gateway takes more", "requested": 300,
        "ok": ok, "skipped": 0, "failed": 0, "unknown": 0, "canary": 5, "rate": 600,
    }  # fmt: skip
    assert 20 <= ok < 300
    expect(page.locator("#content")).to_contain_text(f"{ok} requeued, {300 - ok} cancelled")
    # The page, the database and the gateway agree.
    seeds.be(filled, "charge-limited", {"RECOVERED": ok, "EXHAUSTED": 300 - ok})
    assert len(filled.call("charged", "limited")) == ok
    pages.open_list(page, "failuregroup")
    expect(group.get_by_role("link", name=str(300 - ok), exact=True)).to_be_visible()


def done(shop, page):
    return int(shop.call("operation", operation_of(page))["ok"])
