"""An existing queue is adopted by a policy and detached, while its worker runs."""

import json
import threading
from collections import Counter

import amqp
import pytest

from celery_rmq_delay.operations import adoption
from celery_rmq_delay.operations.doctor import examine
from tests.support.commands import run
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import close_results


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Wait less: the statistics of this broker are young."""
    monkeypatch.setattr(adoption, "PATIENCE", adoption.Patience(settle=0.5, settle_quorum=1.0, round=0.5))


def adopt(lab, managed, *options, code=0):
    arguments = ["adopt", "--queue", "shop", "--yes", "--management-url", str(managed.management_url), *options]
    return run(lab.app, *arguments, code=code)


def parked_by(lab):
    """Let one task fail; return the reason of its last death in the origin queue, None where it was copied."""
    lab.task("fails").delay(99)
    message: amqp.Message = wait_for(lambda: lab.take(lab.delay_queue(1, 3_600_000)))[0]
    deaths = message.headers.get("x-death") or []
    return next((death["reason"] for death in deaths if death["queue"] == "shop"), None)


@pytest.mark.brokers
@pytest.mark.parametrize("apply_on_start", [True, slow(False)])
def test_tasks_of_a_queue_that_exists_and_that_the_app_may_not_declare_are_retried(
    make_lab, queue_type, apply_on_start
):
    conf = {"task_queues": {"shop": {"no_declare": True, "exchange": ""}}}
    lab = make_lab(queue_type, conf, apply_on_start=apply_on_start)
    lab.declare({"x-queue-type": queue_type})
    if not apply_on_start:
        run(lab.app, "apply")
    worker = lab.worker()
    results = [lab.task("fails").delay(2) for _ in range(5)]

    assert [result.get(timeout=SECONDS) for result in results] == [2] * 5
    assert "The queue 'shop' exists with other arguments" in worker.logs()


@pytest.mark.brokers
def test_a_queue_with_other_arguments_that_is_deleted_under_a_worker_is_declared_with_ours(classic_lab):
    classic_lab.declare({"x-queue-type": "classic"})
    classic_lab.worker("prefork", 1)
    assert classic_lab.task("fails").delay(1).get(timeout=SECONDS) == 1
    classic_lab.delete("shop")
    wait_for(lambda: classic_lab.counts("shop")["shop"] is not None)

    assert classic_lab.task("fails").delay(2).get(timeout=SECONDS) == 2
    assert "dlx-missing" not in {finding.code for finding in examine(classic_lab.app, use_management=False)}


@pytest.mark.parametrize("arguments", [{}, {"x-single-active-consumer": True, "x-max-length": 1000}])
def test_a_quorum_queue_that_exists_is_consumed_by_an_app_that_names_no_type(classic_lab, arguments):
    classic_lab.declare({"x-queue-type": "quorum", **arguments})
    worker = classic_lab.worker("prefork", 2)
    results = [classic_lab.task("fails").delay(2) for _ in range(10)]

    assert [result.get(timeout=SECONDS) for result in results] == [2] * 10
    assert "Connection to broker lost" not in worker.logs()


@pytest.mark.slow
@pytest.mark.brokers
def test_a_running_worker_rejects_while_its_queue_is_adopted_and_copies_before_and_after(
    make_lab, managed, managed_vhost, queue_type
):
    lab = make_lab(queue_type, tiers=["1h"], broker=managed_vhost)
    lab.declare({"x-queue-type": queue_type})
    worker = lab.worker()
    # Classic queues of RabbitMQ 4.1 and newer get copies anyway: a rejected message would look like a crash.
    adopted = None if queue_type == "classic" and managed.version >= (4, 1, 0) else "rejected"

    assert parked_by(lab) is None
    output = adopt(lab, managed).output
    assert "+ dead-letter-exchange: rmq_delay.shop.dlx" in output
    assert "w1@test rejects" in output
    assert parked_by(lab) == adopted
    assert adopt(lab, managed).output == "shop: is adopted, nothing to do\n"

    second = lab.worker("solo")
    assert parked_by(lab) == adopted
    output = adopt(lab, managed, "--undo").output
    assert "- policy rmq_delay.shop" in output
    assert "w1@test forwards" in output
    assert "w2@test forwards" in output
    for _ in range(4):
        assert parked_by(lab) is None
    assert adopt(lab, managed, "--undo").output == "shop: is not adopted\n"

    logs = worker.logs()
    assert logs.count("exists with other arguments") == 1
    assert logs.count("Queue shop is adopted by the policy rmq_delay.shop") == 1
    assert logs.count("Queue shop is no longer adopted") == 1
    assert second.logs().count("Queue shop is adopted by the policy rmq_delay.shop") == 1


@pytest.mark.slow
def test_no_task_is_lost_or_runs_twice_while_its_queue_is_adopted_and_detached(
    make_lab, managed, managed_vhost, queue_type
):
    lab = make_lab(queue_type, tiers=["100ms", "200ms", "300ms"], broker=managed_vhost)
    lab.declare({"x-queue-type": queue_type})
    workers = [lab.worker("prefork", 2), lab.worker("threads", 2)]
    fates: dict[str, int] = {}
    stop = threading.Event()

    def publish():
        number = 0
        while not stop.wait(0.01):
            fate = number % 5  # 4: exhausted
            fates[lab.task("fails").delay(fate if fate < 4 else 99).id] = fate
            number += 1
        close_results(lab.app)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for _ in range(2):
            adopt(lab, managed)
            stop.wait(1)
            adopt(lab, managed, "--undo")
    finally:
        stop.set()
        publisher.join()
    adopt(lab, managed)

    expected = sum(min(fate, 3) + 1 for fate in fates.values())
    wait_for(lambda: lab.redis.llen(lab.config.attempts) >= expected)
    exhausted = sum(fate == 4 for fate in fates.values())
    wait_for(lambda: lab.count("rmq_delay.exhausted") == exhausted)
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine").values()))
    runs = Counter((line["id"], line["retries"]) for line in lab.attempts())
    assert set(runs) == {(task, attempt) for task, fate in fates.items() for attempt in range(min(fate, 3) + 1)}
    assert max(runs.values()) == 1
    assert not any("quarantine" in worker.logs() for worker in workers)


def test_an_undo_waits_for_every_consumer_and_loses_nothing_when_one_does_not_answer(
    make_lab, managed, managed_vhost, monkeypatch
):
    lab = make_lab("classic", tiers=["1h"], broker=managed_vhost)
    lab.declare({"x-queue-type": "classic"})
    lab.worker()
    adopt(lab, managed)
    with lab.app.connection_for_read() as stranger:
        channel = stranger.channel()
        channel.basic_qos(0, 1, False)
        channel.basic_consume("shop", callback=lambda message: channel.basic_reject(message.delivery_tag, True))
        address = "{}:{}".format(*stranger.connection.transport.sock.getsockname())

        def refused():
            output = adopt(lab, managed, "--undo", code=1).output
            return output if address in output else None  # the statistics of consumers come late

        with monkeypatch.context() as patch:
            patch.setattr(adoption, "PATIENCE", adoption.Patience(settle=0.2, answers=1.0, round=0.5))
            assert "1 consumers of queue 'shop' did not confirm" in wait_for(refused)
        channel.close()
    assert parked_by(lab) is None  # the worker forwards, and the policy still exists
    found = json.loads(adopt(lab, managed, "--undo", "--json").stdout)
    assert found[0]["deletes"] == "rmq_delay.shop"
