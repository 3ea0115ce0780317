"""Pages show the contents of any message as text; nothing breaks and nothing is executed."""

import pickle

import pytest

from celery_rmq_delay.contrib.django.models import (
    CollectorStatus,
    FailureGroup,
    Operation,
    TaskRecord,
    TaskState,
    UnreadableMessage,
)
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations import requests as operations
from tests.support.django import seed
from tests.support.django.admin_pages import BASE
from tests.support.django.markup import faults

pytestmark = pytest.mark.usefixtures("tables", "shop")

TEXTS = {
    "script": "<script>alert(1)</script>",
    "handler": '"><img src=x onerror="alert(1)">\'><svg onload=alert(1)>',
    "address": "javascript:alert(1)//https://example.org/x?<&>",
    "template": "{{ 7|add:7 }}{% load x %}{{ settings.SECRET_KEY }}%s%(x)s{0}",
    "entities": "&lt;b&gt;&#60;i&#62;&amp;",
    "nul": "a\0b\x01\x08\x1b[31mred\x7f\x85\ufffe",
    "right to left": "\u202e\u2067\u202dcod.exe\u05d0\u0627",
    "long": "x" * 1_000_000,
    "long lines": "word " * 100_000 + "\n" * 1_000,
    "comment": "--><!-- ]]> <![CDATA[ </td></table></pre></textarea></title>",
    "formula": '=HYPERLINK("http://example.org")',
    "traceback": 'Traceback (most recent call last):\n  File "<script>", line 1, in <b>\n    <i>\n' * 50,
}

QUICK = ("script", "nul", "long")


class Bomb:
    """Leaves a trace if it is unpickled."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


def nested(depth):
    return b"[" * depth + b"]" * depth


BODIES = {
    "pickle": (pickle.dumps([[Bomb()], {}, {}]), {"content_type": "application/x-python-serialize"}),
    "pickle declared as JSON": (pickle.dumps([[Bomb()], {}, {}]), {}),
    "invalid UTF-8": (b'[["\xff\xfe\xc3\x28"], {}, {}]', {}),
    "deep": (b"[" + nested(100_000) + b", {}, {}]", {}),
    "less deep": (b"[[" + nested(500) + b"], {}, {}]", {}),
    "a megabyte": (seed.call("x" * 900_000, **{"k" * 1_000: "<script>"}), {}),
    "script": (seed.call("<script>alert(1)</script>", **{"<b>": "</pre><img src=x onerror=alert(1)>"}), {}),
    "NUL": (seed.call("a\0b\u202e"), {}),
    "empty": (b"", {}),
    "a bomb of zeros": (b"\x00" * 100_000, {"content_encoding": "gzip"}),
}


def opened(client, address):
    answer = client.get(address)
    assert answer.status_code == 200, address
    return checked(answer, address)


def checked(answer, address):
    page: str = answer.content.decode()
    assert faults(page) == [], address
    assert "alert(1)</script>" not in page
    assert len(page) < 1_000_000, f"{address} has {len(page)} characters"
    return page


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in TEXTS if name not in QUICK)]
)
def test_hostile_text_is_text_on_every_page(client, name):
    text = TEXTS[name]
    exhausted = seed.hostile(text)
    parked = seed.hostile(text, TaskState.PARKED, 667)
    records = TaskRecord.objects.filter(pk__in=[exhausted.pk, parked.pk])
    operation = operations.freeze(
        "discard", records, actor=Actor(None, text), reason=text[:5_000], details={text[:99]: text}
    )
    operation.items.update(detail=text[:255])
    Operation.objects.filter(pk=operation.pk).update(message=text)
    CollectorStatus.objects.create(name=text[:255], started_at=seed.now(), heartbeat_at=seed.now(), last_error=text)
    UnreadableMessage.objects.create(
        digest="0", queue=text[:255], error=text, body=text.encode(), headers=b"", received_at=seed.now()
    )
    for page in ("parkedtask", "exhaustedtask", "taskrecord", "failuregroup", "operation", "collectorstatus",
                 "unreadablemessage"):  # fmt: skip
        opened(client, f"{BASE}/{page}/")
        row = {"parkedtask": parked.pk, "exhaustedtask": exhausted.pk, "taskrecord": exhausted.pk}.get(page, 1)
        row = FailureGroup.objects.all()[0].pk if page == "failuregroup" else row
        opened(client, f"{BASE}/{page}/{row}/change/")
        opened(client, f"{BASE}/{page}/{row}/history/")
    asked = client.post(f"{BASE}/exhaustedtask/", {"action": "discard", "_selected_action": str(exhausted.pk)})
    assert asked.status_code == 200
    checked(asked, "confirmation")
    done = client.post(
        f"{BASE}/exhaustedtask/",
        {**asked.context["form"].initial, "action": "discard", "_selected_action": str(exhausted.pk), "confirm": "1"},
        follow=True,
    )
    checked(done, "after it")
    assert "<img src" not in client.get("/admin/").content.decode()  # what was done last, on Django's own page
    opened(client, f"{BASE}/exhaustedtask/{exhausted.pk}/history/")


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_message_is_shown_and_never_run(client, name):
    body, properties = BODIES[name]
    task = seed.record(1)
    seed.message(
        task, body, {"<script>alert(1)</script>": "</pre>", "x-death": [{"queue": "<b>", "count": -1}]}, **properties
    )
    page = opened(client, f"{BASE}/exhaustedtask/{task.pk}/change/")
    if name in ("pickle", "pickle declared as JSON", "invalid UTF-8", "deep", "empty", "a bomb of zeros"):
        assert f"undecodable ({len(body)} bytes)" in page
    checked(client.post(f"{BASE}/exhaustedtask/{task.pk}/reveal/"), "revealed")
    edit = client.post(f"{BASE}/exhaustedtask/{task.pk}/edit/", follow=True)
    assert faults(edit.content.decode()) == []
    opened(client, f"{BASE}/exhaustedtask/")
    assert not Bomb.went_off


def test_a_broken_row_does_not_break_the_page(client):
    task = seed.record(1, delay_ms=-1)
    seed.message(task, seed.call(1))
    task.payload.headers = b"\xff\xff\xff\xff!"
    task.payload.save()
    for ladder in ({"a": 1}, "x", [None, "y", -5], list(range(100_000)), 10**30):
        TaskRecord.objects.update(ladder_ms=ladder)
        assert "undecodable" in opened(client, f"{BASE}/exhaustedtask/{task.pk}/change/")
