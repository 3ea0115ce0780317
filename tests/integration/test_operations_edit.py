"""Edited tasks, discarded ones in the result backend, and live counts: against a real broker."""

import json
from typing import Any

import amqp
import kombu
import pytest
from celery.utils.saferepr import saferepr

from celery_rmq_delay import before_requeue
from celery_rmq_delay import headers as h
from celery_rmq_delay.contrib.django.collecting.database import Database
from celery_rmq_delay.contrib.django.models import Operation, Payload, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services import counts
from celery_rmq_delay.contrib.django.services.operations import runner as running
from celery_rmq_delay.contrib.django.services.operations.edit import edit, editable
from celery_rmq_delay.contrib.django.services.operations.requests import freeze, run
from tests.support.django import shop
from tests.support.django.desk import ALICE, ParkedDesk
from tests.support.django.reported import exhausted
from tests.support.django.seed import call
from tests.support.receiving import receiving

Kind = Operation.Kind


@pytest.fixture
def desk(rmq_vhost, sqlite):
    counts.forget()
    with shop.of(shop.make(rmq_vhost, result_backend="cache+memory://"), allow_edit=True, broker_timeout=30) as app:
        yield ParkedDesk(rmq_vhost, app)


def with_json(desk, **headers):
    (task,) = desk.exhausted(1)
    payload = desk.payload(task, call(1, amount=3, token="abc"), **headers)
    payload.body = payload.body.removesuffix(task.task_id.encode())
    payload.properties |= {"content_type": "application/json", "content_encoding": "utf-8"}
    Payload.objects.filter(record=task).delete()
    desk.keep(payload)
    return task


def test_an_edited_task_keeps_its_identity_and_runs_with_other_arguments(desk):
    old = {"amount": 3, "token": "abc"}
    task = with_json(desk, argsrepr=saferepr((1,)), kwargsrepr=saferepr(old), root_id="root")
    form = editable(task)
    assert json.loads(form["kwargs"]) == old
    operation = edit(task, "[1]", '{"amount": 4, "token": "xyz"}', actor=ALICE, reason="typo")
    assert operation.message == "1 edited and requeued"
    assert operation.details["diff"] == [
        {"path": "kwargs.amount", "old": "3", "new": "4"},
        {"path": "kwargs.token", "old": '"[redacted]"', "new": '"[redacted]"'},
    ]
    (message,) = desk.taken()
    args, kwargs, embed = json.loads(message.body)
    assert (args, kwargs, embed) == ([1], {"amount": 4, "token": "xyz"}, json.loads(call())[2])
    assert message.headers["kwargsrepr"] == saferepr(kwargs)
    named = ("id", "root_id", "task", "retries", h.GENERATION)
    assert [message.headers[name] for name in named] == ["id-0", "root", "payments.charge", 0, 1]


def test_a_receiver_of_before_requeue_sees_the_edited_arguments_and_can_keep_the_task(desk):
    asked: list[Any] = []

    def before(sender, task_id, queue, arguments, **_):
        asked.append((sender, task_id, queue, arguments()))
        return "its year is closed" if len(asked) == 1 else None

    task = with_json(desk)
    with receiving(before_requeue, before):
        operation = edit(task, "[2]", "{}", actor=ALICE)
        assert operation.message == "0 edited and requeued, 1 failed (its year is closed)"
        assert run(freeze(Kind.REQUEUE, TaskRecord.objects.all(), actor=ALICE)).message == "1 requeued"
    edited, plain = ([2], {}), ([1], {"amount": 3, "token": "abc"})
    assert asked == [("payments.charge", "id-0", "payments", each) for each in (edited, plain)]


def test_texts_of_arguments_that_the_caller_chose_are_not_computed_again(desk):
    edit(with_json(desk, argsrepr="(***)"), "[2]", "{}", actor=ALICE)
    (message,) = desk.taken()
    assert message.headers["argsrepr"] == "(edited)"
    assert "kwargsrepr" not in message.headers


def test_discarded_tasks_are_revoked_in_the_result_backend(desk):
    desk.exhausted(1)
    desk.parked(1)
    run(freeze(Kind.DISCARD, TaskRecord.objects.all(), actor=ALICE, reason=""))
    assert [shop.found.AsyncResult(task_id).state for task_id in ("id-0", "id-1")] == ["REVOKED", "REVOKED"]


def test_tasks_discarded_before_the_cancellation_are_revoked(desk, monkeypatch):
    desk.parked(120)
    operation = freeze(Kind.DISCARD, TaskRecord.objects.order_by("pk"), actor=ALICE, reason="")
    monkeypatch.setattr(running, "_CHECK_EVERY", 0.0)
    run(operation, stop=lambda: TaskRecord.objects.filter(state=TaskState.DISCARDED).exists())
    discarded = TaskRecord.objects.filter(state=TaskState.DISCARDED).values_list("task_id", flat=True)
    assert 0 < len(discarded) < 120
    assert {shop.found.AsyncResult(task_id).state for task_id in discarded} == {"REVOKED"}


def test_an_unreachable_result_backend_does_not_undo_a_discard(desk, caplog):
    desk.exhausted(2)
    app = shop.make(desk.url, result_backend="redis://127.0.0.1:1/0", redis_socket_connect_timeout=0.2)
    app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
    with shop.of(app):
        operation = run(freeze(Kind.DISCARD, TaskRecord.objects.all(), actor=ALICE, reason=""))
    assert operation.message.startswith("2 discarded. The result backend failed (")
    assert "The result backend has no REVOKED" in caplog.text


@pytest.mark.brokers
def test_messages_in_the_queues_are_counted_and_cached(desk):
    desk.parked(2)
    with kombu.Connection(desk.url) as connection:
        channel = connection.channel()
        for _ in range(3):
            channel.basic_publish(amqp.Message("x"), "", desk.plan.exhausted)
        channel.close()  # what was published before is in the queue
    found = counts.broker_counts()
    assert found.ok
    assert found.parked_by_queue == {"payments": 2}
    assert [(tier.tier, tier.delay_ms, tier.parked) for tier in found.tiers] == [(1, 3_600_000, 2), (2, 7_200_000, 0)]
    assert (found.parked, found.exact, found.exhausted) == (2, 0, 3)
    assert counts.broker_counts() is found
    assert counts.broker_counts(fresh=True) is not found


def test_without_a_broker_the_counts_have_the_error(desk):
    with shop.of(shop.make("amqp://127.0.0.1:1//"), broker_timeout=0.2):
        found = counts.broker_counts(fresh=True)
    assert (found.ok, found.parked) == (False, 0)
    assert "refused" in found.error
    counts.forget()


def test_an_edited_task_comes_back_to_its_row_and_its_old_message_stays_until_then(desk):
    task = with_json(desk)
    edit(task, "[2]", "{}", actor=ALICE)
    (kept,) = Payload.objects.all()
    assert json.loads(kept.body)[0] == [1]
    (sent,) = desk.taken()
    back = exhausted("id-0", 1, 1, body=sent.body.encode())
    Database().write([back])
    (kept,) = Payload.objects.all()
    assert (kept.record, json.loads(kept.body)[0]) == (task, [2])
