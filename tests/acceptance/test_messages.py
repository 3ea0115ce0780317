"""Unusual messages: of other producers, of unknown tasks, undecodable, revoked, expired."""

import shutil
import time
from dataclasses import replace
from typing import Any

import amqp
import pytest
from celery import uuid
from celery.result import AsyncResult
from kombu import Exchange

from celery_rmq_delay import headers as h
from celery_rmq_delay.operations.exhausted import Selection, requeue
from tests.support.corpus import slow
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import EMPTY
from tests.support.workers.other_producer import publish, task_message

#: Tasks that succeed at the second attempt, and their arguments.
PROTOCOL_1 = (("fails", 1), ("kills_child", 1), ("overruns",))


@pytest.mark.brokers
def test_messages_of_another_producer_advance_and_come_back_byte_for_byte(lab):
    lab.worker()
    with lab.app.connection_for_write() as connection:
        channel = connection.channel()
        Exchange("orders", "topic", durable=True)(channel).declare()
        channel.queue_bind("shop", "orders", "orders.created.#")
    sent = task_message("fails", [99])
    publish(lab, sent, "orders", "orders.created.eu")
    task_id = sent.headers["id"]

    wait_for(lambda: lab.count("rmq_delay.exhausted"))
    attempts = lab.attempts(task_id)
    assert [attempt["retries"] for attempt in attempts] == [0, 1, 2, 3]
    assert {tuple(attempt["route"]) for attempt in attempts} == {("orders", "orders.created.eu")}

    lab.workers[0].stop()
    with lab.app.connection_for_write() as connection:
        requeue(connection, lab.app._rmq_delay.settings, Selection(task_ids=frozenset({task_id})))
    (back,) = lab.take("shop")

    assert lab.count("rmq_delay.exhausted") == 0
    assert back.body.encode() == sent.body.encode()
    # A quorum queue adds its own count to every delivery.
    headers = {name: value for name, value in back.headers.items() if name != "x-delivery-count"}
    assert headers == {**sent.headers, h.GENERATION: 1}
    assert {**back.properties, "application_headers": headers} == {**sent.properties, "application_headers": headers}


@pytest.mark.brokers
def test_an_unknown_task_advances_through_the_ladder_and_ends_in_exhausted(running):
    message = task_message("no.such.task", [])
    publish(running, message)

    (found,) = wait_for(lambda: running.take("rmq_delay.exhausted"))

    assert found.body == message.body
    tiers = [death["queue"] for death in found.headers["x-death"] if death["reason"] == "expired"]
    assert sorted(tiers) == [running.delay_queue(tier_index, 300 * tier_index) for tier_index in (1, 2, 3)]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"\xff\xfe{not json", "application/json"), (b"\x80\x04K\x01.", "application/x-python-serialize")],
    ids=["broken JSON", "pickle"],
)
@pytest.mark.parametrize(
    "headers", [{}, {"task": "fails", "id": "00000000-0000-4000-8000-000000000000"}], ids=["v1", "v2"]
)
def test_a_body_that_cannot_be_decoded_is_kept_in_exhausted(running_classic, body, content_type, headers):
    worker = running_classic.workers[0]
    publish(
        running_classic,
        amqp.Message(body, content_type=content_type, content_encoding="utf-8", application_headers=headers),
    )

    (found,) = wait_for(lambda: running_classic.take("rmq_delay.exhausted"))

    kept = found.body if isinstance(found.body, bytes) else found.body.encode("utf-8", "surrogateescape")
    assert kept == body
    assert found.headers["rmq-delay-reason"] == "undecodable"  # at once: no retry would make it readable
    assert not worker.exited
    assert running_classic.task("add").delay(1, 2).get(timeout=SECONDS) == 3


def test_a_quarantined_task_that_cannot_be_decompressed_is_kept_in_exhausted(classic_lab):
    worker = classic_lab.worker("solo", 1)
    sent = task_message("fails", [1], compression="zip")
    publish(classic_lab, sent, routing_key="shop.quarantine")

    (found,) = wait_for(lambda: classic_lab.take("rmq_delay.exhausted"))

    assert (found.body, found.headers["rmq-delay-queue"]) == (sent.body, "shop")
    assert not worker.exited


def test_a_parked_task_that_is_revoked_does_not_run_again(make_lab):
    lab = make_lab(tiers=["1h"])
    lab.worker()
    result = lab.task("fails").delay(99)
    wait_for(lambda: result.state == "RETRY" and lab.parked())

    assert lab.app.control.revoke(result.id, reply=True, timeout=SECONDS, limit=1)
    lab.release(result.id)

    wait_for(lambda: result.state == "REVOKED")
    wait_for(lab.nothing_left)
    assert len(lab.attempts(result.id)) == 1


@pytest.mark.brokers
@pytest.mark.parametrize("pool", ["prefork", slow("solo")])
def test_a_task_is_settled_even_if_the_result_backend_cannot_store_its_result(make_lab, tmp_path, pool):
    results = tmp_path / "results"
    results.mkdir()
    lab = make_lab(tiers=["100ms"])
    worker = lab.worker(pool, 1, config=replace(lab.config, conf={"result_backend": f"file://{results}"}))
    revoked, late = uuid(), uuid()
    lab.app.control.revoke(revoked, reply=True, timeout=SECONDS, limit=1)
    shutil.rmtree(results)
    lab.task("healthy").apply_async((1,), task_id=revoked)
    lab.task("healthy").apply_async((1,), task_id=late, expires=-5)
    refused = lab.task("refuses").delay()
    neighbour = lab.task("healthy").apply_async((2,), ignore_result=True)

    wait_for(lambda: lab.attempts(neighbour.id))
    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert message.headers["id"] == refused.id
    assert {attempt["id"] for attempt in lab.attempts()} == {refused.id, neighbour.id}
    worker.stop()
    assert "Connection to broker lost" not in worker.logs()
    assert lab.counts(*EMPTY) == EMPTY


def test_a_task_that_expires_while_parked_is_revoked_on_its_return(make_lab, queue_type):
    lab = make_lab(queue_type, tiers=["1h"])
    lab.worker()
    for expires in (2, 8, 32, 128):  # the longer ones for a machine that is slow with the first attempt
        result = lab.task("fails").apply_async((99,), expires=expires)
        sent = time.monotonic()
        wait_for(lambda result=result: lab.attempts(result.id) or result.state == "REVOKED")
        if lab.attempts(result.id):
            break
    wait_for(lambda: result.state == "RETRY" and lab.parked())
    wait_for(lambda: time.monotonic() - sent > expires + 1, "its end")

    lab.release(result.id)

    wait_for(lambda: result.state == "REVOKED")
    assert len(lab.attempts(result.id)) == 1


@pytest.mark.brokers
def test_a_task_sees_the_headers_of_its_caller_and_can_pass_them_on(make_lab, queue_type):
    lab = make_lab(queue_type, queues={"zones": False})
    lab.worker("prefork", 1, "--queues", "shop,zones")
    given = {"x-request-id": "7", "tenant": "north"}
    lab.task("passes_on").apply_async((["shop", "zones"],), headers=given)

    wait_for(lambda: len(lab.attempts()) == 4)
    (first, second, *passed) = lab.attempts()
    assert first["headers"] == second["headers"] == given
    assert [(attempt["task"], attempt["retries"]) for attempt in passed] == [("healthy", 0)] * 2
    wait_for(lambda: lab.counts("shop", "zones") == {"shop": 0, "zones": 0})


def test_a_task_sees_headers_that_a_tracing_tool_nests_besides_its_callers(running):
    """Datadog and Sentry nest the headers of a trace in a header of this name, which is all that Celery shows."""
    result = running.task("passes_on").apply_async(([],), headers={"outer": "1", "headers": {"trace": "7"}})

    wait_for(result.ready)

    assert [attempt["headers"] for attempt in running.attempts(result.id)] == [{"outer": "1", "trace": "7"}] * 2


@pytest.mark.brokers
def test_forged_headers_of_the_package_and_the_broker_are_not_trusted(make_lab, queue_type):
    lab = make_lab(queue_type, queues={"zones": False})
    worker = lab.worker("prefork", 1, "--queues", "shop,zones")
    death = {"queue": "shop", "reason": "rejected", "count": 2, "exchange": "", "routing-keys": ["shop"]}
    forged: dict[str, Any] = {"rmq_delay": ["shop", 2, None, "reject"], "x-death": [death]}
    publish(lab, task_message("fails", [1], **forged))
    publish(lab, task_message("healthy", [1], **forged), routing_key="zones")

    wait_for(lambda: len(lab.attempts()) >= 3)
    assert sorted(attempt["retries"] for attempt in lab.attempts()) == [0, 0, 1]
    worker.stop()
    assert not any(lab.counts("shop", "zones", "shop.quarantine").values())


@pytest.mark.brokers
def test_tasks_of_protocol_1_are_retried_exhausted_and_settled_as_others(make_lab, queue_type):
    lab = make_lab(queue_type, conf={"task_protocol": 1})
    worker = lab.worker("prefork", 2)
    recovers, survives, late = (lab.task(name).delay(*args) for name, *args in PROTOCOL_1)
    gone, asks = lab.task("fails").delay(99), lab.task("asks_again").delay(2)

    assert recovers.get(timeout=SECONDS) == 1
    assert survives.get(timeout=SECONDS) == "survived"
    assert late.get(timeout=SECONDS) == "in time"
    assert asks.get(timeout=SECONDS) == "asked"
    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert message.headers["rmq-delay-reason"] == "retries_used"
    tried = {each.id: [attempt["retries"] for attempt in lab.attempts(each.id)] for each in (recovers, gone, asks)}
    assert tried == {recovers.id: [0, 1], gone.id: [0, 1, 2, 3], asks.id: [0, 0, 0]}

    worker.stop()
    assert "quarantine" not in worker.logs()
    assert lab.counts("shop", "shop.quarantine") == {"shop": 0, "shop.quarantine": 0}


@pytest.mark.brokers
def test_a_task_of_protocol_1_advances_through_its_own_ladder(make_lab, queue_type):
    """Its message lacks the header by which the broker chooses the ladder."""
    lab = make_lab(queue_type, conf={"task_protocol": 1}, tiers=["100ms"])
    lab.worker("prefork", 1)
    result = lab.task("own_tiers").delay()

    (message,) = wait_for(lambda: lab.take("rmq_delay.exhausted"))
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1, 2]
    assert message.headers["rmq-delay-reason"] == "retries_used"
    wait_for(lambda: result.state == "FAILURE")


def test_a_quarantined_task_that_has_succeeded_does_not_run_again_with_deduplication(make_lab, queue_type):
    lab = make_lab(queue_type, conf={"worker_deduplicate_successful_tasks": True})
    lab.worker("prefork", 1)
    message = task_message("healthy", [1])
    publish(lab, message)
    result: AsyncResult[int] = AsyncResult(message.headers["id"], app=lab.app)
    assert result.get(timeout=SECONDS) == 1

    publish(lab, message, routing_key="shop.quarantine")

    wait_for(lambda: "already completed successfully" in lab.workers[0].logs())
    wait_for(lambda: lab.count("shop.quarantine") == 0)
    assert len(lab.attempts()) == 1


def test_a_task_with_an_eta_waits_for_it_once(make_lab, queue_type):
    lab = make_lab(queue_type, tiers=["300ms"])
    lab.worker()
    for countdown in (3, 9, 2 * BUSY):  # a busy machine is no proof of a second wait
        result = lab.task("fails").apply_async((1,), countdown=countdown)
        assert result.get(timeout=SECONDS) == 1
        first, second = lab.attempts(result.id)
        assert second["at"] - first["at"] >= 0.3
        if second["at"] - first["at"] < countdown:
            return
    pytest.fail(f"The second attempt came {countdown:g} s after the first")


def test_the_result_of_a_parked_task_reads_as_celery_users_know_it(make_lab):
    lab = make_lab(tiers=["1h"])
    lab.worker()
    result: AsyncResult = lab.task("fails").delay(99)

    wait_for(lambda: result.state == "RETRY")

    assert (repr(result.result), result.retries, result.name) == ("Boom('attempt 0')", 0, "fails")
    assert result.traceback.startswith("Traceback (most recent call last):\n")
    assert "in fails\n    raise Boom(" in result.traceback
    assert "During handling of the above exception, another exception occurred:" in result.traceback
    assert result.traceback.rstrip().endswith("Retry in 3600.0s: Boom('attempt 0')")


@pytest.mark.slow
def test_a_task_that_has_run_is_not_called_unreadable_where_its_request_class_raises(classic_lab):
    worker = classic_lab.worker("solo", 1)
    classic_lab.task("broken").delay()
    assert classic_lab.task("healthy").delay(1).get(timeout=SECONDS) == 1
    assert "A task has run, and its request failed: ValueError" in worker.logs()
    assert classic_lab.counts("rmq_delay.exhausted") == {"rmq_delay.exhausted": 0}
