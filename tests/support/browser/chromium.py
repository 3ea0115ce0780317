"""The shared Chromium, which is replaced when it is lost."""

from __future__ import annotations

from contextlib import suppress

from playwright.sync_api import Browser, Error, Playwright, sync_playwright

from tests.support.losses import Losses

#: Only the shop's address is resolved: a page that requests another host fails, and the failure is found.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class SharedChromium:
    """A Chromium that is started when a test wants it, and again where it or Playwright's driver has ended meanwhile.

    A lost one fails the test that used it, and is one of the ``losses``; it fails no test after it.
    """

    def __init__(self, program: str, losses: Losses) -> None:
        self._program, self._losses = program, losses
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """Return the running browser, or a new one."""
        self._forget_lost()
        if self._browser is None:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(executable_path=self._program, args=[ALONE])
        return self._browser

    def close(self) -> None:
        """End Chromium and Playwright."""
        self._forget_lost()
        if self._browser is not None:
            self._browser.close()
            self._end_driver()

    def _forget_lost(self) -> None:
        if self._browser is None:
            return
        try:
            self._browser.new_browser_cdp_session().detach()  # the end is noticed during a request
        except Error as error:
            self._losses.add(f"Chromium or its driver ended ({str(error).splitlines()[0]})")
            self._end_driver()

    def _end_driver(self) -> None:
        if self._playwright is not None:
            with suppress(Error):  # it may have ended
                self._playwright.stop()
        self._playwright = self._browser = None


def pid_of(browser: Browser) -> int:
    """Return the id of a browser's main process."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return next(int(each["id"]) for each in processes if each["type"] == "browser")
