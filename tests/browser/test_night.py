"""A night with 40,000 exhausted tasks: from the login to three decisions, with few clicks or by keyboard alone."""

import time

import pytest
from playwright.sync_api import expect

from tests.support.browser import pages
from tests.support.browser.hands import Keyboard, Mouse
from tests.support.browser.pages import BASE
from tests.support.browser.seeds import CAUSES, DECLINED, GATEWAY, MAIL
from tests.support.browser.shop import ADMIN, running
from tests.support.waiting import wait_for

#: What the work may take.
CLICKS, SECONDS = 12, 90
SIZES = {"wide": (1440, 900), "tablet": (1024, 768), "phone": (390, 844)}


@pytest.fixture
def night_shop(rmq_broker, rmq_redis, tmp_path):
    """A shop of its own, with a collector and an operator, whose tables are as after the outage."""
    with running(rmq_broker, rmq_redis, tmp_path) as shop:
        shop.start("collector", "rmq_delay_collect")
        shop.start("operator", "rmq_delay_operate")
        assert shop.call("fill_night") == 40_000
        yield shop


def decide(hands):
    """Log in, requeue gradually what the gateway caused, discard the declined cards, and hold the mails."""
    page = hands.page
    page.goto(f"{BASE}/failuregroup/")
    page.keyboard.type(ADMIN[0])  # the name has the focus
    hands.write("#id_password", ADMIN[1])
    hands.press("input[type=submit]")
    _start(hands, GATEWAY, "requeue_gradually", "the gateway is back")
    expect(page.locator("#rmq-progress")).to_be_visible()
    hands.press(".rmq-tabs a[href$='/failuregroup/']")
    _start(hands, DECLINED, "discard", "the customers were asked for another card")
    expect(page.locator("#rmq-progress")).to_be_visible()
    hands.press(".rmq-tabs a[href$='/failuregroup/']")
    hands.press(button(MAIL, "muted"))
    pages.shows(page, "1 group muted.")


def button(cause, action):
    """Return the selector of a button in the row of a failure group."""
    which = "[name=muted]" if action == "muted" else f"[value={action}]"
    return f"button{which}[aria-label*='{cause.error}']"


def _start(hands, cause, action, reason):
    hands.press(button(cause, action))
    expect(hands.page.get_by_text(f"{cause.count:,} tasks", exact=True)).to_be_visible()
    hands.write("textarea[name=reason]", reason)
    hands.press("input[name=confirm]")


@pytest.mark.slow
@pytest.mark.parametrize("way", [Mouse, Keyboard])
def test_the_night_is_over_after_three_decisions(open_page, night_shop, look, way):
    hands = way(open_page(user=None, url=night_shop.url, viewport={"width": 1440, "height": 900}))
    begun = time.monotonic()
    decide(hands)
    took = time.monotonic() - begun
    assert hands.count <= CLICKS
    assert took <= SECONDS
    left = {cause.prefix: cause.count for cause in CAUSES} | {DECLINED.prefix: 0}

    def is_done():
        found = night_shop.call("open_by_cause")
        return {**found, GATEWAY.prefix: 0} == {**left, GATEWAY.prefix: 0}

    wait_for(is_done, "all declined payments discarded, and nothing else")
    wait_for(lambda: len(night_shop.call("charged", GATEWAY.prefix)) >= 10, "payments after the canaries")
    assert night_shop.call("mailed", f"{MAIL.prefix}00000") == 0


@pytest.mark.slow
def test_the_pages_of_the_night_look_right(open_page, night_shop, look):
    decide(Mouse(open_page(user=None, url=night_shop.url)))
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            page = open_page(
                user=None, url=night_shop.url, viewport={"width": width, "height": height}, color_scheme=scheme
            )
            _log_in(page)
            for name in ("failuregroup", "exhaustedtask", "operation"):
                pages.open_list(page, name)
                expect(page.locator("#result_list tbody tr").first).to_be_visible()
                look(page, f"night-{name}-{size}-{scheme}")
            pages.open_list(page, "failuregroup")
            page.locator(button(MAIL, "requeue_gradually")).click()
            expect(page.locator("input[name=confirm]")).to_be_visible()
            look(page, f"night-confirm-{size}-{scheme}")


def _log_in(page):
    page.goto(f"{BASE}/failuregroup/")
    page.keyboard.type(ADMIN[0])
    page.locator("#id_password").fill(ADMIN[1])
    page.locator("input[type=submit]").click()
