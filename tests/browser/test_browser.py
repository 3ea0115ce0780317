"""The browser, the shop and the watch over both."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import inside
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.shop import ADMIN, Shop
from tests.support.browser.watch import Watch
from tests.support.waiting import wait_for


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_superuser_logs_in(open_page: OpenPage, scheme: str) -> None:
    page = open_page(user=None, color_scheme=scheme)
    page.goto("/admin/")
    page.get_by_label("Username:").fill(ADMIN[0])
    page.get_by_label("Password:").fill(ADMIN[1])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Site administration")).to_be_visible()
    shot(page, f"admin-index-{scheme}")


def test_a_page_is_logged_in_from_the_start(page: Page) -> None:
    page.goto("/admin/auth/user/")
    expect(page.get_by_role("link", name=ADMIN[0], exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("console.error('a bad sign')", "a bad sign"),
        ("setTimeout(() => alert('a dialog'))", "a dialog"),
        ("setTimeout(() => { throw new Error('an uncaught error') })", "an uncaught error"),
        ("location = 'http://elsewhere.test/'", "request to another host"),
        ("document.body.append(Object.assign(document.createElement('style'), {textContent: 'p {}'}))", "Policy"),
    ],
    ids=["console", "dialog", "exception", "host", "policy"],
)
def test_errors_on_a_page_are_found(page: Page, watch: Watch, script: str, found: str) -> None:
    page.goto("/admin/")
    assert watch.problems == []
    page.evaluate(f"() => {{ {script} }}")

    def is_found() -> bool:
        page.wait_for_timeout(20)
        return any(found in problem for problem in watch.problems)

    wait_for(is_found, found)
    watch.expect(".")
    assert watch.problems == []


def test_an_expected_error_that_does_not_happen_is_a_problem(watch: Watch) -> None:
    watch.expect("status of 403")
    assert watch.problems == ["expected, but not seen: status of 403"]


def test_a_partner_is_down_when_a_test_sets_it_down(shop: Shop) -> None:
    feed = f"{shop.environment['SUPPLIER_FEED_URL']}/north.csv"
    shop.call(inside.partner_is, "feeds", "down")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(feed)
    shop.call(inside.partner_is, "feeds", "up")
    with urllib.request.urlopen(feed) as prices:
        assert prices.readline() == b"sku,price\n"


def test_errors_in_the_shops_process_are_reported(shop: Shop) -> None:
    with pytest.raises(AssertionError, match="KeyError: 'unknown'"):
        shop.call(inside.partner_is, "unknown", "down")
