"""Previews of stored messages, and edits of their arguments."""

import json
import zlib

import pytest
from celery.utils.saferepr import saferepr

from celery_rmq_delay.amqp import bodies
from celery_rmq_delay.amqp.bodies import Call
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskState
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations.edit import differences, edit, editable
from celery_rmq_delay.contrib.django.services.payloads import preview, reveal
from celery_rmq_delay.exceptions import EditError
from celery_rmq_delay.operations.preview import MAX_SHOWN
from tests.support.django.records import record
from tests.support.django.seed import call, message
from tests.support.django.shop import of

pytestmark = pytest.mark.usefixtures("database", "shop")

ALICE = Actor(None, "alice")


def kept(body, headers=None, **properties):
    """Return an exhausted task with this message."""
    task = record(TaskState.EXHAUSTED)
    message(task, body, headers, **properties)
    return task


def test_arguments_are_shown_without_their_secrets():
    shown = preview(kept(call(7, {"card_number": "4111"}, password="hunter2", amount=3)))
    assert json.loads(shown.args) == [7, {"card_number": "[redacted]"}]
    assert json.loads(shown.kwargs) == {"password": "[redacted]", "amount": 3}
    assert (shown.problem, shown.redacted) == ("", True)


def test_the_user_who_reveals_a_message_is_recorded():
    task = kept(call(password="hunter2"), {"authorization": "Bearer abcdefghij"})
    assert "hunter2" not in repr(preview(task))
    assert "abcdefghij" not in repr(preview(task))
    shown = reveal(task, ALICE)
    assert json.loads(shown.kwargs) == {"password": "hunter2"}
    assert "Bearer abcdefghij" in repr(shown)
    operation = Operation.objects.get()
    assert (operation.kind, operation.actor, operation.is_over) == ("reveal", "alice", True)
    assert [item.record_id for item in operation.items.all()] == [task.pk]


def test_headers_are_decoded_and_those_of_identity_are_locked():
    death = {"queue": "payments", "reason": "rejected", "count": 3, "exchange": "", "routing-keys": ["payments"]}
    shown = preview(kept(call(), {"x-death": [death], "retries": 2, "argsrepr": "(token='abc',)"}))
    headers = {header.name: header for header in shown.headers}
    assert headers["id"].locked
    assert headers["task"].locked
    assert not headers["retries"].locked
    assert headers["retries"].value == "2"
    assert "abc" not in headers["argsrepr"].value
    (row,) = shown.deaths
    assert (row.queue, row.reason, row.count, row.routing_keys) == ("payments", "rejected", 3, "payments")


@pytest.mark.parametrize(
    ("body", "headers", "properties"),
    [
        (
            b"\x80\x05cos\nsystem\n",
            {},
            {"content_type": "application/x-python-serialize", "content_encoding": "binary"},
        ),
        (b"\xff\xfe[", {}, {}),
        (b"not json", {}, {}),
        (b'{"a": 1}', {}, {}),
        (b"[" * 100_000, {}, {}),
        (b"[" * 100_000 + b"]" * 100_000, {}, {}),
        (b"[[" + b"1" * 10_000 + b"], {}, {}]", {}, {}),
        (b"x" * (bodies.MAX_BODY + 1), {}, {}),
        (zlib.compress(b" " * (2 * bodies.MAX_BODY)), {"compression": "application/x-gzip"}, {}),
        (b"no zlib", {"compression": "application/x-gzip"}, {}),
        (b"[[],{},{}]", {"compression": "application/x-bz2"}, {}),
        (b"[[],{},{}]", {}, {"content_encoding": "utf-16"}),
        (b"[[],{},{}]", {}, {"content_type": None}),
    ],
)
def test_an_unreadable_message_is_shown_with_its_size(body, headers, properties):
    task = kept(body, headers, **properties)
    shown = preview(task)
    assert shown.problem.startswith(f"undecodable ({len(body)} bytes): ")
    assert shown.args == ""
    with pytest.raises(EditError, match="plain JSON"):
        editable(task)


def test_hostile_arguments_are_shown_bounded():
    wide = b"[" + b"[" * 400 + b",".join([b"1"] * 100_000) + b"]" * 400 + b", {}, {}]"
    odd = json.dumps([["\ud800\0<script>alert(1)</script>", "\u202eevil"], {}, {}]).encode()
    for task in (kept(wide), kept(odd), kept(call("x" * 900_000))):
        for shown in (preview(task), reveal(task, ALICE)):
            assert shown.problem == ""
            assert len(shown.args) <= MAX_SHOWN
            shown.args.encode()
            assert "\0" not in shown.args


def test_broken_headers_are_a_problem_and_no_error():
    task = kept(call())
    Payload.objects.update(headers=b"\xff\xff\xff\xff!")
    assert "undecodable" in preview(task).problem


def test_a_task_that_cannot_be_edited_is_refused_with_the_reason(shop):
    deflated, without, parked = (
        kept(zlib.compress(call(1)), {"compression": "application/x-gzip"}),
        record(),
        kept(call(1)),
    )
    assert json.loads(preview(deflated).args) == [1]
    assert preview(without).problem == "not kept"
    parked.state = TaskState.PARKED
    for task, reason in ((deflated, "plain JSON"), (without, "not in the database"), (parked, "this one is parked")):
        with pytest.raises(EditError, match=reason):
            editable(task)
    with of(shop), pytest.raises(EditError, match="ALLOW_EDIT"):
        editable(kept(call(1)))


def test_edits_are_shown_without_secrets():
    old = Call([1, {"a": [1, 2]}], {"amount": 3, "token": "x", "gone": None}, {})
    new = Call([1, {"a": [1, 5, 6]}], {"amount": True, "token": "y"}, {})
    assert differences(old, new) == [
        {"path": "args[1].a[1]", "old": "2", "new": "5"},
        {"path": "kwargs.amount", "old": "3", "new": "true"},
        {"path": "kwargs.token", "old": '"[redacted]"', "new": '"[redacted]"'},
        {"path": "kwargs.gone", "old": "null", "new": ""},
        {"path": "args[1].a[2]", "old": "", "new": "6"},
    ]


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "text"),
    [
        ("[1", "{}", "args", "not JSON"),
        ("{}", "{}", "args", "a JSON list"),
        ("[NaN]", "{}", "args", "NaN is not a number of JSON"),
        ("[1e999]", "{}", "args", "1e999 is not a number of JSON"),
        ("[1]", '{"a": [-1e999]}', "kwargs", "-1e999 is not a number of JSON"),
        ("[1]", '{"a": 1, "b": 2, "a": 3}', "kwargs", 'the key "a" is there twice'),
        ("[1]", "[]", "kwargs", "a JSON object"),
        ("[1]", '{"a": ' * 100_000, "kwargs", "nested too deep"),
        ("[1]", "{}", "", "Nothing was changed"),
    ],
)
def test_an_edit_that_cannot_be_published_is_refused(args, kwargs, field, text):
    task = kept(call(1))
    with pytest.raises(EditError, match=text) as caught:
        edit(task, args, kwargs, actor=ALICE)
    assert caught.value.field == field
    assert not Operation.objects.exists()


def test_changes_of_keys_with_similar_paths_are_all_shown():
    old = Call([], {"order": {"lines": {"amount": 100}}}, {})
    new = Call([], {"order": {"lines": {"amount": 99}, "lines.amount": 100, "": [1]}}, {})
    assert differences(old, new) == [
        {"path": "kwargs.order.lines.amount", "old": "100", "new": "99"},
        {"path": 'kwargs.order["lines.amount"]', "old": "", "new": "100"},
        {"path": 'kwargs.order[""][0]', "old": "", "new": "1"},
    ]


def test_an_edit_without_a_broker_changes_nothing():
    task = kept(call(1), {"argsrepr": saferepr((1,))})
    operation = edit(task, "[2]", "{}", actor=ALICE, reason="typo")
    assert operation.state == Operation.State.FAILED
    assert operation.message.startswith("0 edited and requeued, 1 not sent (broker unreachable: ")
    task.refresh_from_db()
    assert task.state == TaskState.EXHAUSTED


def test_nothing_of_a_stored_message_is_executed():
    with pytest.raises(bodies.UndecodableError):
        bodies.decode(b"cos\nsystem\n(S'x'\ntR.", {"content_type": "application/x-yaml"}, {})
