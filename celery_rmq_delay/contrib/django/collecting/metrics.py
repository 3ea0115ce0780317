"""The collector's page ``/metrics``, where prometheus-client is installed."""

from __future__ import annotations

import importlib.util

from django.db import connections

from .announcing import Observe
from .health import Answer, Page

_MISSING = b'No metrics without prometheus-client: pip install "celery-rmq-delay[prometheus]".\n'


def metrics() -> tuple[Page, Observe | None]:
    """Return the page, and the function that observes the lateness of retries; None without prometheus-client."""
    if importlib.util.find_spec("prometheus_client") is None:
        return (lambda: (501, "text/plain; charset=utf-8", _MISSING)), None
    from .. import prometheus

    registry = prometheus.registry()

    def page() -> Answer:
        try:
            text, content_type = prometheus.exposition(registry)
        finally:
            connections.close_all()  # of this thread, which ends with the request
        return 200, content_type, text

    return page, prometheus.observe_lateness
