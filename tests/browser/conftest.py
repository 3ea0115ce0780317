"""Fixtures of the tests in a browser: one Chromium and one shop, a fresh browser context for each test.

Both end with this package's last test: while Playwright runs, its event loop runs in this thread, and Django refuses
to touch a database beside one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.plugin import skip_or_fail
from tests.browser import inside, seeds
from tests.browser.pictures import shot
from tests.browser.shop import ADMIN, Shop
from tests.browser.watch import Watch

OpenPage = Callable[..., Page]
FAILED = pytest.StashKey[bool]()

expect.set_options(timeout=15_000)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, or the program that CHROMIUM names; Playwright's own browsers are not downloaded."""
    wanted = os.environ.get("CHROMIUM") or "chromium"
    program = shutil.which(wanted)
    if program is None:
        skip_or_fail(f"No {wanted} was found. Install it (Debian: apt-get install chromium), or name it with CHROMIUM.")
    # No name but the shop's address is looked up: a page that asks for another host gets nothing, and is found out.
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program, args=[alone]) as browser:
        yield browser


@pytest.fixture(scope="package")
def shop(rmq_broker: Any, rmq_redis: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A running shop with a worker, whose superuser is `ADMIN`."""
    private = rmq_broker if isinstance(rmq_broker, PrivateBroker) else None
    url = private.vhost("browser") if private else rmq_broker.url
    with Shop(url, rmq_redis.url, tmp_path_factory.mktemp("shop")) as shop:
        yield shop
    if private:
        private.delete_vhost("browser")


@pytest.fixture(scope="package")
def filled(shop: Shop) -> Shop:
    """The shop with a collector and an operator, its pages filled; see `seeds`."""
    shop.start("collector", "rmq_delay_collect")
    shop.start("operator", "rmq_delay_operate")
    seeds.seed(shop)
    return shop


@pytest.fixture
def watch() -> Watch:
    """What was wrong on the pages of this test; ``watch.expect(pattern)`` lets something pass."""
    return Watch()


@pytest.fixture
def open_page(chromium: Browser, shop: Shop, watch: Watch, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Return a function that opens a page: its ``user`` is logged in, other options go to the browser's context.

    ``url`` names another web server of the shop.

    >>> page = open_page(user=None, color_scheme="dark", viewport={"width": 390, "height": 844})

    The test fails when a page had an error on its console, an uncaught exception or a request to another host.
    """
    opened: list[Page] = []

    def open_one(*, user: str | None = ADMIN[0], url: str = shop.url, **options: Any) -> Page:
        options = {"viewport": {"width": 1280, "height": 900}, "locale": "en", "timezone_id": "UTC", **options}
        context = chromium.new_context(base_url=url, **options)
        context.set_default_timeout(10_000)
        if user is not None:
            session = {"name": "sessionid", "value": shop.call(inside.session_of, user), "url": url}
            context.add_cookies([session])  # type: ignore[list-item]
        watch.over(context, url)
        page = context.new_page()
        opened.append(page)
        return page

    yield open_one
    if request.node.stash.get(FAILED, False):
        for number, page in enumerate(opened, 1):
            shot(page, f"failed-{re.sub('[^A-Za-z0-9]+', '-', request.node.name)}-{number}")
        print(shop.logs())
    for page in opened:
        page.context.close()
    if watch.problems:
        pytest.fail("\n".join(watch.problems), pytrace=False)


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A page of the superuser's in the light colour scheme, 1280 by 900."""
    return open_page()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test failed, for the picture of what it saw last."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report
