"""Sends alerts by mail and webhook, as configured in the setting NOTIFY."""

from __future__ import annotations

import base64
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from django.conf import settings as django_settings
from django.core import mail

from .. import signals
from ..conf import Notify, conf
from ..models import TaskRecord
from . import content
from .content import Alert
from .outbox import Outbox

#: The timeout of mail servers, and the most time for a webhook, in seconds.
TIMEOUT = 10.0


@contextmanager
def notifying() -> Iterator[None]:
    """Send the alerts that ``NOTIFY`` configures while the block runs, and the rest that is due at its end."""
    notify = conf().notify
    with ExitStack() as stack:
        for outbox in _outboxes(notify):
            stack.callback(outbox.close)
            for kind in notify.kinds:
                signal = getattr(signals, "task_ran_after_discard" if kind == "discarded_ran" else f"task_{kind}")
                take = partial(_take, outbox, kind)
                signal.connect(take, sender=TaskRecord, weak=False)
                stack.callback(signal.disconnect, take, sender=TaskRecord)
        yield


def _take(outbox: Outbox, kind: str, record: TaskRecord, **_: Any) -> None:
    outbox.add(kind, record)


def _outboxes(notify: Notify) -> Iterator[Outbox]:
    if notify.mail:
        yield Outbox("mail", send_mail, every=notify.every_minutes * 60)
    if notify.webhook:
        url, data = notify.webhook, content.slack if notify.format == "slack" else content.payload
        yield Outbox("webhook", lambda found: post(url, data(found), timeout=TIMEOUT), every=notify.every_minutes * 60)


def send_mail(found: Sequence[Alert]) -> None:
    """Mail alerts to ADMINS, if there are any, with Django's mail backend. Raises the backend's errors."""
    people = [each if isinstance(each, str) else each[1] for each in django_settings.ADMINS]
    if not people:
        return
    mailers: Any = getattr(mail, "mailers", None)  # since Django 6.1, which deprecates the rest
    backend: Any = mail.get_connection() if mailers is None else mailers.default
    if getattr(backend, "timeout", TIMEOUT) is None:  # otherwise Django waits without a limit
        backend.timeout = TIMEOUT
    subject = f"{django_settings.EMAIL_SUBJECT_PREFIX}{content.subject(found)}"
    backend.send_messages([mail.EmailMessage(subject, content.text(found), django_settings.SERVER_EMAIL, people)])


class NotSentError(Exception):
    """A webhook did not accept an alert; the message omits the webhook's path, which is often a secret."""


def post(url: str, data: object, *, timeout: float) -> None:
    """Post JSON, without redirects. Raises `NotSentError` without a status of 200 to 299 in ``timeout`` seconds."""
    host = urlsplit(url).hostname
    made: list[Any] = []
    is_over = threading.Event()

    def give_up() -> None:
        is_over.set()
        for connection in made:
            with suppress(OSError, AttributeError):  # not connected, or closed meanwhile
                connection.sock.shutdown(socket.SHUT_RDWR)

    opener = urllib.request.build_opener(_NoRedirects, _Http(made), _Https(made))
    # The timeout of a socket is that of each read: a server that answers slowly would never reach it.
    timer = threading.Timer(timeout, give_up)
    timer.daemon = True
    timer.start()
    try:
        opener.open(_request(url, data), timeout=timeout).close()
    except HTTPError as error:
        error.close()
        raise NotSentError(f"{host} answered with status {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        if is_over.is_set():
            raise NotSentError(f"{host} did not answer within {timeout:g} s") from None
        reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        raise NotSentError(f"{host}: {type(reason).__name__}") from None
    finally:
        timer.cancel()


def _request(url: str, data: object) -> urllib.request.Request:
    parts = urlsplit(url)
    credentials, _, address = parts.netloc.rpartition("@")
    request = urllib.request.Request(  # noqa: S310 - the setting is an HTTP URL
        parts._replace(netloc=address, fragment="").geturl(),
        data=json.dumps(data).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "celery-rmq-delay"},
        method="POST",
    )
    if credentials:
        encoded = base64.b64encode(unquote(credentials).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return request


class _Remembering(urllib.request.AbstractHTTPHandler):
    """Adds the connections that it makes to ``made``, so that another thread can end them."""

    def __init__(self, made: list[Any]) -> None:
        super().__init__()
        self._made = made

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        def make(*args: Any, **given: Any) -> Any:
            self._made.append(connection := http_class(*args, **given))
            return connection

        return super().do_open(make, req, **options)


class _Http(_Remembering, urllib.request.HTTPHandler):
    pass


class _Https(_Remembering, urllib.request.HTTPSHandler):
    pass


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
