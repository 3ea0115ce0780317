#!/usr/bin/env python3
"""Take screenshots of the admin for the documentation: a real shop, a real worker, a real browser.

``make screenshots`` writes ``docs/assets/admin-*.png``; with names as arguments only these. The figures of the day
before are generated, as a shop that was started a minute ago has none. So is the history for the insights, but their
analysis is real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402 - after the path

from celery_rmq_delay.analytics import synth  # noqa: E402
from celery_rmq_delay.testing import PrivateBroker  # noqa: E402
from tests.support.browser import pages, seeds  # noqa: E402
from tests.support.browser.shop import ADMIN, Shop  # noqa: E402
from tests.support.servers.redis import PrivateRedis  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

ASSETS = ROOT / "docs" / "assets"
WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}}
#: For lists, whose rows have similar texts.
SHORT: dict[str, Any] = {"viewport": {"width": 1280, "height": 720}}
DARK = {**SHORT, "color_scheme": "dark"}
NARROW: dict[str, Any] = {"viewport": {"width": 400, "height": 860}}
MOST_BYTES = 150_000
HIDE = "(parts, path) => parts.forEach(part => part.textContent = part.textContent.replaceAll(path, '/srv/shop'))"


def groups(page: Page, _shop: Shop) -> None:
    """Failure groups, those with the most open tasks first."""
    pages.open_list(page, "failuregroup")


def exhausted(page: Page, _shop: Shop) -> None:
    """Exhausted tasks, the newest first."""
    pages.open_list(page, "exhaustedtask")


def parked(page: Page, _shop: Shop) -> None:
    """Parked tasks, the next retry first."""
    pages.open_list(page, "parkedtask")


def task(page: Page, shop: Shop) -> None:
    """One exhausted payment."""
    pages.open_task(page, shop, "charge-looks-001")


def traceback(page: Page, shop: Shop) -> None:
    """The traceback of that payment's last attempt, without the path of the checkout."""
    task(page, shop)
    page.locator(".rmq-trace pre").evaluate_all(HIDE, f"{ROOT}/example_django_project")
    page.get_by_role("heading", name="Traceback").evaluate("heading => heading.scrollIntoView()")


def confirm(page: Page, _shop: Shop) -> None:
    """The confirmation page for 300 payments."""
    pages.open_group(page, "Client error")
    page.get_by_label("Select all objects on this page for an action").check()
    page.get_by_role("button", name="Select all:").click()
    pages.choose(page, "Requeue gradually")
    page.get_by_label("Why").fill("The gateway takes more again.")


def operation(page: Page, shop: Shop) -> None:
    """An operation with a third of its tasks done."""
    confirm(page, shop)
    page.get_by_label("Per minute").fill("1200")
    page.get_by_role("button", name="Requeue gradually", exact=True).click()
    number = int(page.url.rstrip("/").split("/")[-2])
    wait_for(lambda: shop.call("operation", number)["ok"] > 100, "a hundred are requeued")
    page.reload()


def insights(page: Page, _shop: Shop) -> None:
    """The recovery curve of payments, and the advice below it."""
    pages.open_list(page, "insightrun")


PICTURES: dict[str, tuple[dict[str, Any], Callable[[Page, Shop], None]]] = {
    "admin-groups": (WIDE, groups),
    "admin-exhausted": (SHORT, exhausted),
    "admin-exhausted-dark": (DARK, exhausted),
    "admin-parked": (SHORT, parked),
    "admin-parked-narrow": (NARROW, parked),
    "admin-task": (WIDE, task),
    "admin-traceback": (WIDE, traceback),
    "admin-confirm": (WIDE, confirm),
    "admin-operation": (WIDE, operation),
    "admin-insights": (WIDE, insights),
}


def take(browser: Browser, shop: Shop, name: str) -> None:
    """Take one screenshot of the window."""
    options, go = PICTURES[name]
    context = browser.new_context(base_url=shop.url, locale="en", timezone_id="UTC", **options)
    session = {"name": "sessionid", "value": shop.call("session_of", ADMIN[0]), "url": shop.url}
    context.add_cookies([session])  # type: ignore[list-item]
    context.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page = context.new_page()
    go(page, shop)
    path = ASSETS / f"{name}.png"
    page.screenshot(path=path, animations="disabled")
    context.close()
    size = path.stat().st_size
    sys.stdout.write(f"{path.relative_to(ROOT)}: {size} bytes\n")
    if size > MOST_BYTES:
        sys.exit(f"A screenshot may have at most {MOST_BYTES} bytes.")


def analysed(folder: Path) -> Path:
    """Return the output of the analytics over three synthetic weeks."""
    history, output, days = folder / "history", folder / "insights", 21
    history.mkdir()
    start = datetime.now(timezone.utc).date() - timedelta(days=days)
    synth.write(str(history), synth.Spec(attempts=60_000, days=days, start=start))
    command = [sys.executable, "-m", "celery_rmq_delay.analytics", "run", "--ladder", "payments=30s,5m,1h"]
    subprocess.run([*command, "--input", str(history), "--output", str(output)], check=True)  # noqa: S603
    return output


def main() -> None:
    """Start a shop, let tasks fail, take the screenshots."""
    names = sys.argv[1:] or list(PICTURES)
    with (
        tempfile.TemporaryDirectory() as folder,
        PrivateBroker() as broker,
        PrivateRedis() as redis,
        Shop(broker.url, redis.url, Path(folder)) as shop,
    ):
        shop.start("collector", "rmq_delay_collect")
        shop.start("operator", "rmq_delay_operate")
        seeds.seed(shop)
        for prefix in ("hostile-", "charge-secret", "charge-edit"):
            shop.call("forget", prefix)
        shop.call("make_up_a_day")
        if "admin-insights" in names:
            shop.call("load_insights", str(analysed(Path(folder))))
        program = shutil.which(os.environ.get("CHROMIUM") or "chromium")
        with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as browser:
            for name in names:
                take(browser, shop, name)


if __name__ == "__main__":
    main()
