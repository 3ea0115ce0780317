"""Fixtures of the tests in a browser: one Chromium and one shop, a fresh browser context for each test.

Both end with this package's last test: while Playwright runs, its event loop runs in this thread, and Django refuses
to touch a database beside one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from celery_rmq_delay.testing.plugin import skip_or_fail
from tests.support.browser import inside
from tests.support.browser.chromium import SharedChromium
from tests.support.browser.looks import Look, looking
from tests.support.browser.pages import OpenPage
from tests.support.browser.pictures import shot
from tests.support.browser.sharing import SharedShop
from tests.support.browser.shop import ADMIN, Shop
from tests.support.browser.watch import Watch
from tests.support.losses import Losses
from tests.support.waiting import SECONDS

FAILED = pytest.StashKey[bool]()

expect.set_options(timeout=1_000 * SECONDS)


@pytest.fixture(scope="package")
def losses() -> Iterator[Losses]:
    """Lost shared processes; they fail the teardown of the last test."""
    losses = Losses()
    yield losses
    losses.report()


@pytest.fixture(scope="package")
def shared_chromium(losses: Losses) -> Iterator[SharedChromium]:
    """Debian's Chromium, or the program that CHROMIUM names; Playwright's own browsers are not downloaded."""
    wanted = os.environ.get("CHROMIUM") or "chromium"
    program = shutil.which(wanted)
    if program is None:
        skip_or_fail(f"No {wanted} was found. Install it (Debian: apt-get install chromium), or name it with CHROMIUM.")
    shared = SharedChromium(program, losses)
    yield shared
    shared.close()


@pytest.fixture
def chromium(shared_chromium: SharedChromium) -> Browser:
    """The browser that all tests share."""
    return shared_chromium.browser()


@pytest.fixture(scope="package")
def shared_shop(
    rmq_broker: Any, rmq_redis: Any, tmp_path_factory: pytest.TempPathFactory, losses: Losses
) -> Iterator[SharedShop]:
    """Starts the shop; its superuser is `ADMIN`."""
    shared = SharedShop(rmq_broker, rmq_redis, lambda: tmp_path_factory.mktemp("shop"), losses)
    yield shared
    shared.close()


@pytest.fixture
def shop(shared_shop: SharedShop) -> Shop:
    """The shop that all tests share: a web server and a worker run, and its pages may be empty."""
    return shared_shop.shop()


@pytest.fixture
def filled(shared_shop: SharedShop) -> Shop:
    """The shop with a collector and an operator, its pages filled; see `seeds`."""
    return shared_shop.filled()


@pytest.fixture
def watch() -> Watch:
    """Errors on the pages of this test; ``watch.expect(pattern)`` allows one."""
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
        context.set_default_timeout(1_000 * SECONDS)
        if user is not None:
            session = {"name": "sessionid", "value": shop.call(inside.session_of, user), "url": url}
            context.add_cookies([session])  # type: ignore[list-item]
        watch.over(context, url)
        page = context.new_page()
        opened.append(page)
        return page

    yield open_one
    if request.node.stash.get(FAILED, False):
        for number, page in enumerate(opened if chromium.is_connected() else [], 1):
            shot(page, f"failed-{re.sub('[^A-Za-z0-9]+', '-', request.node.name)}-{number}")
        print(shop.logs())
    for page in opened:
        if chromium.is_connected():
            page.context.close()
    if watch.problems:
        pytest.fail("\n".join(watch.problems), pytrace=False)


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A page of the superuser's in the light colour scheme, 1280 by 900."""
    return open_page()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test failed, for a picture of its last page."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def look() -> Iterator[Look]:
    """Return a function that takes a picture and checks layout and accessibility."""
    with looking() as look:
        yield look
