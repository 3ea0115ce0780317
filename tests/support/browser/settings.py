"""The shop's settings for tests of its pages.

The content security policy is the strictest: violations are errors on the console. Payments and reports use all their
retries within seconds, mails and imports wait for longer than any test runs.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from shop.settings_demo import *  # noqa: F403 - Django's usual way to vary settings
from shop.settings_demo import MIDDLEWARE

POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"


def with_policy(respond: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware that adds the policy to every page."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path == "/favicon.ico":  # Chromium always requests it; a missing one is an error on the console
            return HttpResponse(status=204)
        response = respond(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware


# Pages are in the language of the browser, so that tests see them from right to left, too.
MIDDLEWARE = [
    "tests.support.browser.settings.with_policy",
    *MIDDLEWARE,
    "django.middleware.locale.LocaleMiddleware",
]

CELERY_RMQ_DELAY = {
    "tiers": ["1s", "2s"],
    "queues": {
        "payments": {"tiers": ["1s", "2s"]},
        "mail": {"tiers": ["6h", "12h", "1d"]},
    },
}
IMPORT_TIERS = ["6h", "12h"]
RMQ_DELAY = {"ALLOW_EDIT": True, "BROKER_CACHE": 0.5}
# The web server logs errors only.
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"django.server": {"level": "WARNING"}}}
