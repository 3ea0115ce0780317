"""The pages while RabbitMQ does not answer."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from celery_rmq_delay.testing.servers.host import free_port
from tests.support.browser import inside, pages
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import Shop

pytestmark = pytest.mark.slow


def test_pages_open_under_a_banner_and_a_requeue_fails_with_the_reason(open_page: OpenPage, filled: Shop) -> None:
    alone = filled.start_web("web-alone", BROKER_URL=f"amqp://guest:guest@127.0.0.1:{free_port()}//")
    page = open_page(url=alone)
    for name in ("exhaustedtask", "parkedtask", "taskrecord"):
        pages.open_list(page, name)
        expect(page.locator(".rmq-warning")).to_contain_text("does not answer")
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
    shot(page, "broker-away")
    before = filled.call(inside.record, "charge-broker-001")
    pages.open_task(page, filled, "charge-broker-001")
    expect(pages.state(page)).to_have_text("Exhausted")
    page.get_by_role("button", name="Requeue", exact=True).click()
    pages.confirm(page, "Requeue", "let us try")
    pages.shows(page, "0 requeued, 1 not sent")
    shot(page, "requeue-failed")
    assert filled.call(inside.record, "charge-broker-001") == before
