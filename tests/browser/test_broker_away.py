"""The pages while RabbitMQ does not answer."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from celery_rmq_delay.testing.ports import free_port
from tests.browser import inside, pages
from tests.browser.conftest import OpenPage
from tests.browser.pictures import shot
from tests.browser.shop import Shop


@pytest.fixture(scope="module")
def alone(filled: Shop) -> str:
    """The address of a web server of the shop that cannot reach the broker."""
    return filled.start_web("web-alone", BROKER_URL=f"amqp://guest:guest@127.0.0.1:{free_port()}//")


def test_pages_open_under_a_banner(open_page: OpenPage, filled: Shop, alone: str) -> None:
    page = open_page(url=alone)
    for name in ("exhaustedtask", "parkedtask", "taskrecord"):
        pages.open_list(page, name)
        expect(page.locator(".rmq-warning")).to_contain_text("does not answer")
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
    shot(page, "broker-away")
    pages.open_task(page, filled, "charge-broker-001")
    expect(pages.state(page)).to_have_text("Exhausted")


def test_a_requeue_fails_with_the_reason_and_changes_nothing(open_page: OpenPage, filled: Shop, alone: str) -> None:
    before = filled.call(inside.record, "charge-broker-002")
    page = open_page(url=alone)
    pages.open_task(page, filled, "charge-broker-002")
    page.get_by_role("button", name="Requeue", exact=True).click()
    pages.confirm(page, "Requeue", "let us try")
    pages.says(page, "0 requeued, 1 failed")
    shot(page, "requeue-failed")
    assert filled.call(inside.record, "charge-broker-002") == before
