"""Celery apps without a connection, with the package installed."""

from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_rmq_delay import install

#: A broker whose name cannot be resolved.
NOWHERE = "amqp://user:nothing@broker.invalid//"


def bare_app(rmq_delay: Mapping[str, Any] | None = None, *, broker: str = NOWHERE, **conf: Any) -> Celery:
    """Return an app as a project configures it; ``conf``: other settings of Celery's."""
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(rmq_delay=rmq_delay, **conf)
    return app


def app_of(rmq_delay: Mapping[str, Any] | None = None, **given: Any) -> Celery:
    """Return an app as in `bare_app`, with the package installed."""
    app = bare_app(rmq_delay, **given)
    install(app)
    return app
