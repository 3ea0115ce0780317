"""Pages of the admin in Django's test client: request an action, confirm it, read its messages."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.messages import get_messages
from django.test import Client

from celery_rmq_delay.contrib.django.models import TaskRecord
from tests.support.django.markup import faults

BASE = "/admin/rmq_delay"
EXHAUSTED = f"{BASE}/exhaustedtask/"


def ask(client: Client, action: str, *tasks: TaskRecord, address: str = EXHAUSTED, **more: str) -> Any:
    """Return the confirmation page."""
    selected = [str(task.pk) for task in tasks] or ["0"]
    page = client.post(address, {"action": action, "_selected_action": selected, **more})
    assert page.status_code == 200
    assert faults(page.content.decode()) == []
    return page


def confirm(client: Client, page: Any, **answer: str) -> Any:
    """Send the form of a confirmation page as a browser does, and return the response."""
    sent: dict[str, Any] = {"confirm": "1", **answer}
    for name, value in re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.content.decode()):
        if name != "csrfmiddlewaretoken":
            sent.setdefault(name, [])
            if isinstance(sent[name], list):
                sent[name].append(value)
    for name in ("canary", "rate"):
        if name in page.context["form"].fields:
            sent.setdefault(name, str(page.context["form"][name].value()))
    return client.post(page.request["PATH_INFO"] + "?" + page.request["QUERY_STRING"], sent)


def messages_of(answer: Any) -> list[str]:
    """Return the messages that Django shows on the next page."""
    return [str(message) for message in get_messages(answer.wsgi_request)]
