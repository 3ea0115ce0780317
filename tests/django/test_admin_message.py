"""The message on the page of a task: without secrets, revealed with a trace, edited."""

import html
import json

import pytest
from django.contrib.admin.models import LogEntry
from django.test import override_settings

from celery_rmq_delay.contrib.django.models import ExhaustedTask, Operation, TaskRecord, TaskState
from tests.support.django import people, seed
from tests.support.django.admin_pages import EXHAUSTED, messages_of
from tests.support.django.markup import faults


@pytest.fixture
def task(tables, shop):
    made = seed.record(1)
    death = {"queue": "payments", "reason": "rejected", "count": 3, "exchange": "shop", "routing-keys": ["pay"]}
    seed.message(
        made,
        seed.call(7, card_number="4111111111111111"),
        {"x-death": [death], "argsrepr": "(7,)", "my_token": "hunter2-s3cr3t"},
    )
    return made


def shown(client, task):
    answer = client.get(f"{EXHAUSTED}{task.pk}/change/")
    assert answer.status_code == 200
    page: str = answer.content.decode()
    assert faults(page) == []
    return html.unescape(page)


def test_secrets_are_left_out_headers_are_listed_and_deaths_decoded(task):
    page = shown(people.superuser(), task)
    assert "4111111111111111" not in page
    assert '"card_number": "[redacted]"' in page
    assert "hunter2-s3cr3t" not in page
    assert "(locked)" in page
    assert "<td><bdi>payments</bdi></td><td><bdi>rejected</bdi></td><td>3</td>" in page
    assert "<bdi>pay</bdi>" in page


def test_a_reveal_needs_a_permission_and_leaves_a_trace(task):
    bob = people.staff("view_exhaustedtask", "requeue_taskrecord")
    assert "Reveal</button>" not in shown(bob, task)
    assert bob.post(f"{EXHAUSTED}{task.pk}/reveal/").status_code == 403
    assert not Operation.objects.exists()
    eve = people.staff("view_exhaustedtask", "view_payload_taskrecord", name="eve")
    assert "Reveal</button>" in shown(eve, task)
    answer = eve.post(f"{EXHAUSTED}{task.pk}/reveal/")
    page = html.unescape(answer.content.decode())
    assert '"card_number": "4111111111111111"' in page
    assert "no-store" in answer["Cache-Control"]
    assert faults(answer.content.decode()) == []
    assert "4111111111111111" not in shown(eve, task), "the next page is redacted again"
    operation = Operation.objects.get()
    assert (operation.kind, operation.actor) == ("reveal", "eve")
    assert LogEntry.objects.get().change_message == "Message revealed"


def test_a_task_whose_message_is_not_kept_shows_the_arguments_of_its_event(task):
    other = seed.record(2)
    page = shown(people.superuser(), other)
    assert "not kept" in page
    assert '{"currency": "EUR", "card": "[redacted]"}' in page
    assert "Reveal</button>" not in page


def test_the_permission_to_edit_suffices_to_see_secrets_which_is_noted_and_to_requeue(task):
    client = people.staff("view_exhaustedtask", "edit_payload_taskrecord")
    assert client.get(f"{EXHAUSTED}{task.pk}/edit/")["Location"] == f"{EXHAUSTED}{task.pk}/change/"
    assert "Edit and requeue</button>" in shown(client, task)
    answer = client.post(f"{EXHAUSTED}{task.pk}/edit/")
    page = html.unescape(answer.content.decode())
    assert '"card_number": "4111111111111111"' in page
    assert "no-store" in answer["Cache-Control"]
    assert faults(answer.content.decode()) == []
    assert "orders.gateway" not in page
    answer = client.post(f"{EXHAUSTED}{task.pk}/edit/", {"args": "[8]", "kwargs": "{}", "reason": "typo"})
    assert messages_of(answer)[-1].startswith("0 edited and requeued, 1 not sent (broker unreachable")
    assert [each.kind for each in Operation.objects.order_by("pk")] == ["reveal", "edit"]


def test_an_invalid_edit_shows_the_form_again_with_the_input(task):
    client = people.superuser()
    for args, kwargs, wrong in (
        ("[7", "{}", "This is not JSON"),
        ("{}", "{}", "Arguments are a JSON list"),
        ("[7]", "[]", "Keyword arguments are a JSON object"),
        ("[7]", '{"card_number": "4111111111111111"}', "Nothing was changed"),
        ("[7]", '{"card_number": NaN}', "This is not JSON"),
        ("", "{}", "This field is required"),
    ):
        answer = client.post(f"{EXHAUSTED}{task.pk}/edit/", {"args": args, "kwargs": kwargs, "reason": "typo"})
        page = html.unescape(answer.content.decode())
        assert (answer.status_code, wrong in page, "typo" in page) == (200, True, True), (args, kwargs)
        assert not Operation.objects.exists()
    assert ExhaustedTask.objects.get().state == TaskState.EXHAUSTED


def test_an_edit_runs_shows_its_result_and_leaves_no_secret_in_the_audit_log(task):
    kwargs = {
        "card_number": "4112",
        "pairs": [["password", "s3cr3t"]],
        "env": [{"name": "db_pass", "value": "s3cr3t"}],
        "run": ["--pin", "s3cr3t"],
    }
    sent = {"args": "[8]", "kwargs": json.dumps(kwargs), "reason": "typo"}
    answer = people.superuser().post(f"{EXHAUSTED}{task.pk}/edit/", sent)
    assert answer["Location"] == f"{EXHAUSTED}{task.pk}/change/"
    (message,) = messages_of(answer)
    assert message.startswith("0 edited and requeued, 1 not sent (broker unreachable")
    operation = Operation.objects.get()
    assert operation.details["diff"][0] == {"path": "args[0]", "old": "7", "new": "8"}
    assert "kwargs.env[0].value" in str(operation.details)
    assert [secret for secret in ("411", "s3cr3t") if secret in str(operation.details)] == []
    assert LogEntry.objects.get().change_message == f"Edit and requeue (operation {operation.pk}): typo"


def test_editing_is_off_unless_a_setting_allows_it(task):
    client = people.superuser()
    with override_settings(RMQ_DELAY={"CELERY_APP": "tests.support.django.shop.found"}):
        assert "Edit and requeue" not in shown(client, task)
        assert client.post(f"{EXHAUSTED}{task.pk}/edit/").status_code == 403


def test_the_reason_why_a_task_cannot_be_edited_is_shown(task):
    client = people.superuser()
    other = seed.record(2)
    seed.message(other, b"\x80\x04", content_type="application/x-python-serialize")
    answer = client.post(f"{EXHAUSTED}{other.pk}/edit/")
    assert answer["Location"] == f"{EXHAUSTED}{other.pk}/change/"
    (message,) = messages_of(answer)
    assert message == "Only plain JSON can be edited; this message is: application/x-python-serialize."


def test_a_page_shows_tasks_of_its_own_list_only_and_their_later_state(task):
    client = people.superuser()
    never = seed.record(2, TaskState.PARKED)
    assert client.get(f"{EXHAUSTED}{never.pk}/change/").status_code == 404
    assert client.post(f"{EXHAUSTED}{never.pk}/reveal/").status_code == 404
    TaskRecord.objects.filter(pk=task.pk).update(state=TaskState.RECOVERED)
    assert "Recovered" in shown(client, task)
