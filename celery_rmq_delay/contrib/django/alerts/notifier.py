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
from .posting import post

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
                stack.enter_context(_connected(kind, outbox))
        yield


def _outboxes(notify: Notify) -> Iterator[Outbox]:
    if notify.mail:
        yield Outbox("mail", send_mail, every=notify.every_minutes * 60)
    if notify.webhook:
        url, data = notify.webhook, content.slack if notify.format == "slack" else content.payload
        yield Outbox("webhook", lambda found: post(url, data(found), timeout=TIMEOUT), every=notify.every_minutes * 60)


@contextmanager
def _connected(kind: str, outbox: Outbox) -> Iterator[None]:
    name = "task_ran_after_discard" if kind == "discarded_ran" else f"task_{kind}"
    signal = getattr(signals, name)

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
