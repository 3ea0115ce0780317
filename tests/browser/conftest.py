"""Fixtures of the tests in a browser: one shop, a Chromium for each module, a fresh browser context for each test.

Both end with this package: Playwright's event loop runs in this thread, and Django refuses a database beside one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from celery_rmq_delay.testing.plugin import skip_or_fail
from tests.support.browser import pages, seeds
from tests.support.browser.looks import DJANGO, RULES, Look, Watch, described, shot
from tests.support.browser.pages import OpenPage
from tests.support.browser.shop import ADMIN, Shop, running
from tests.support.waiting import SECONDS

#: Only the shop's address is resolved: a page that requests another host fails, and the failure is found.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
FAILED = pytest.StashKey[bool]()

expect.set_options(timeout=1_000 * SECONDS)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, or the program that CHROMIUM names; Playwright's own browsers are not downloaded.

    One per module: if it is killed, the modules after it have another one.
    """
    wanted = os.environ.get("CHROMIUM") or "chromium"
    program = shutil.which(wanted)
    if program is None:
        skip_or_fail(f"No {wanted} was found. Install it (Debian: apt-get install chromium), or name it with CHROMIUM.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[ALONE])
        yield browser
        with suppress(Error):  # it may have ended
            browser.close()


@pytest.fixture(scope="package")
def shop(rmq_broker: Any, rmq_redis: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The shop that all tests share: a web server and a worker run, and its pages may be empty."""
    with running(rmq_broker, rmq_redis, tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture(scope="package")
def filled(shop: Shop) -> Shop:
    """The shop with a collector and an operator, its pages filled; see `seeds`."""
    shop.start("collector", "rmq_delay_collect")
    shop.start("operator", "rmq_delay_operate")
    seeds.seed(shop)
    return shop


@pytest.fixture
def watch() -> Watch:
    """Errors on the pages of this test; ``watch.expect(pattern)`` allows one."""
    return Watch()


@pytest.fixture
def open_page(chromium: Browser, shop: Shop, watch: Watch, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Return a function that opens a page: its ``user`` is logged in, other options go to the browser's context.

    The test fails when a page had an error on its console, an uncaught exception or a request to another host.
    """
    opened: list[Page] = []

    def open_one(*, user: str | None = ADMIN[0], url: str = shop.url, **options: Any) -> Page:
        options = {"viewport": {"width": 1280, "height": 900}, "locale": "en", "timezone_id": "UTC", **options}
        context = chromium.new_context(base_url=url, **options)
        context.set_default_timeout(1_000 * SECONDS)
        if user is not None:
            session = {"name": "sessionid", "value": shop.call("session_of", user), "url": url}
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
    problems = []

    def look(page: Page, name: str) -> None:
        if not pages.has_no_sideways_scroll(page):
            problems.append(f"{name} is wider than its window")
        shot(page, name)
        options = {"runOnly": RULES, "resultTypes": ["violations"], "preload": False}
        found = Axe().run(page, context={"exclude": [[selector] for selector in DJANGO]}, options=options)
        problems.extend(f"{name}: {described(each)}" for each in found.response["violations"])

    yield look
    assert not problems, "\n".join(problems)
