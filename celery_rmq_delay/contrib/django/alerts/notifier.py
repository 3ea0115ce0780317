"""Sends alerts by mail and webhook, as configured in the setting NOTIFY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from django.conf import settings as django_settings
from django.core import mail

from .. import signals
from ..conf import Notify, conf
from ..models import TaskRecord
from . import content
from .content import Alert
from .outbox import Outbox

#: The timeout of mail servers and webhooks in seconds.
TIMEOUT = 10.0


class NotSentError(Exception):
    """A webhook did not accept an alert; the message omits the webhook's path, which is often a secret."""


@contextmanager
def notifying() -> Iterator[None]:
    """Send the alerts that ``NOTIFY`` configures while the block runs, and the rest that is due at its end."""
    notify = conf().notify
    with ExitStack() as stack:
        for outbox in _outboxes(notify):
            stack.callback(outbox.close)
            for kind in notify.kinds:
                stack.enter_context(_connected(kind, outbox))
        yield


def _outboxes(notify: Notify) -> Iterator[Outbox]:
    if notify.mail:
        yield Outbox("mail", send_mail, every=notify.every_minutes * 60)
    if notify.webhook:
        url = notify.webhook
        yield Outbox("webhook", lambda found: post(url, found), every=notify.every_minutes * 60)


@contextmanager
def _connected(kind: str, outbox: Outbox) -> Iterator[None]:
    signal = getattr(signals, f"task_{kind}")

    def take(record: TaskRecord, **_: Any) -> None:
        outbox.add(kind, record)

    signal.connect(take, sender=TaskRecord, weak=False)
    try:
        yield
    finally:
        signal.disconnect(take, sender=TaskRecord)


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


def post(url: str, found: Sequence[Alert]) -> None:
    """Post alerts to a webhook. Raises `NotSentError` where it does not answer with a status of 200 to 299."""
    import httpx

    try:
        status = httpx.post(url, json=content.payload(found), timeout=TIMEOUT).status_code
    except httpx.HTTPError as error:
        raise NotSentError(f"{httpx.URL(url).host}: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise NotSentError(f"{httpx.URL(url).host} answered with status {status}")
