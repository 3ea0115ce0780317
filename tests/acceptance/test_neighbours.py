"""Tools and features that Celery users have around their workers still work."""

import os
import subprocess
import sys
import uuid
from dataclasses import replace

import httpx
import pytest
import trustme
from celery import Celery, chord
from kombu import Queue

from celery_rmq_delay.amqp.apply import consumer_count
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.corpus import slow
from tests.support.waiting import BUSY, SECONDS, wait_for
from tests.support.workers.lab import close_app
from tests.support.workers.project import VARIABLE, make_app


def test_inspect_sees_no_scheduled_tasks_and_no_reserved_ones_while_tasks_are_parked(make_lab):
    lab = make_lab(tiers=["1h"])
    lab.worker()
    results = [lab.task("fails").delay(99) for _ in range(20)]
    wait_for(lambda: all(result.state == "RETRY" for result in results))
    inspect = lab.app.control.inspect(timeout=SECONDS, limit=1)

    wait_for(lambda: inspect.active() == inspect.reserved() == {"w1@test": []}, "a worker that has nothing to do")
    assert inspect.scheduled() == {"w1@test": []}
    assert [queue["name"] for queue in inspect.active_queues()["w1@test"]] == ["shop"]
    wait_for(lambda: lab.parked() == 20, "all of them in their delay queue")


def test_a_router_that_reads_the_arguments_routes_calls_and_their_retries(make_lab):
    router = f"{make_app.__module__}.by_first_argument"
    own_tiers = {"fails": {"tiers": ["200ms", "200ms"], "max_retries": 2}}
    lab = make_lab(conf={"task_routes": [router], "task_annotations": own_tiers})
    lab.worker("prefork", 1, "--queues", "shop-2")

    result = lab.task("fails").delay(2)
    assert result.get(timeout=SECONDS) == 2
    assert [attempt["queue"] for attempt in lab.attempts(result.id)] == ["shop-2"] * 3


def test_a_worker_starts_beside_a_route_to_a_queue_that_may_not_be_created(make_lab):
    routes = {"healthy": {"queue": "nowhere"}}
    lab = make_lab(conf={"task_routes": routes, "task_create_missing_queues": False, "task_queues": {"shop": {}}})
    lab.worker("prefork", 1)

    assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1


def test_cancelling_a_queue_cancels_its_quarantined_tasks_until_it_is_consumed_again(make_lab, queue_type):
    lab = make_lab(queue_type)
    worker = lab.worker("prefork", 1, "--queues", "shop,zones")

    def consumers():
        with lab.app.connection_for_read() as connection:
            return [consumer_count(connection, each) for each in ("shop", "shop.quarantine", "zones.quarantine")]

    lab.app.control.cancel_consumer("shop", reply=True, timeout=BUSY, limit=1)
    wait_for(lambda: consumers() == [0, 0, 1])
    lab.app.control.add_consumer("shop", reply=True, timeout=BUSY, limit=1)
    wait_for(lambda: consumers() == [1, 1, 1])

    assert lab.task("fails").delay(1).get(timeout=SECONDS) == 1
    assert not worker.exited


def test_a_chord_that_celerys_own_task_joins_works_where_all_tasks_are_retryable(make_lab, tmp_path, queue_type):
    (tmp_path / "results").mkdir()
    lab = make_lab(queue_type, conf={"result_backend": f"file://{tmp_path}/results"})  # has no counters to join with
    lab.config = replace(lab.config, for_all_tasks=True)
    app = make_app(lab.config)
    worker = lab.worker("prefork", 2)
    add, total = app.tasks["add"], app.tasks["total"]

    found = chord([add.s(n, n, n % 2) for n in range(4)], total.s()).delay()

    assert found.get(timeout=SECONDS) == 12
    assert "celery.chord_unlock" in worker.logs()
    wait_for(lambda: not any(lab.counts("shop", "shop.quarantine", "rmq_delay.exhausted").values()))
    close_app(app)


@pytest.mark.slow
def test_flower_shows_retries_and_failures(make_lab, tmp_path):
    lab = make_lab(tiers=["1h"])
    lab.worker("prefork", 2, "--task-events")
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "tests.support.workers.project"]
    with (tmp_path / "flower.log").open("wb") as log:
        flower = subprocess.Popen(
            [*command, "flower", "--address=127.0.0.1", f"--port={port}"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, VARIABLE: lab.config.dumps(), "FLOWER_UNAUTHENTICATED_API": "true"},
        )

    def get(path):
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/api/{path}", timeout=5)
        except httpx.TransportError:
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def shown(task_id, state):
        found = get(f"task/info/{task_id}")
        return found["exception"] if found.get("state") == state else None

    try:
        wait_for(lambda: "w1@test" in get("workers"), "flower sees the worker")
        parked, failed = lab.task("fails").delay(99), lab.task("gives_up").delay()
        assert wait_for(lambda: shown(parked.id, "RETRY"), "RETRY in flower") == "Boom('attempt 0')"
        assert wait_for(lambda: shown(failed.id, "FAILURE"), "FAILURE in flower") == "Hopeless('no card will do')"
    finally:
        flower.kill()  # on Python 3.13, SIGTERM did not end it for minutes
        flower.wait(SECONDS)


def test_every_queue_gets_a_ladder_but_those_that_the_settings_leave_alone(make_lab, queue_type):
    lab = make_lab(
        queue_type,
        conf={"task_routes": {"fails": {"queue": "routed"}}},
        queues={"routed": {"tiers": ["100ms"]}, "plain": False},
    )
    lab.worker("prefork", 2, "--queues", "shop,routed,missing,plain")
    lab.app.control.add_consumer("late", reply=True, timeout=SECONDS, limit=1)
    fails = lab.task("fails")
    results = {"routed": fails.delay(1)}
    results |= {queue: fails.apply_async((1,), queue=queue) for queue in ("missing", "late")}

    assert {queue: result.get(timeout=SECONDS) for queue, result in results.items()} == dict.fromkeys(results, 1)
    assert [attempt["queue"] for attempt in lab.attempts(results["routed"].id)] == ["routed", "routed"]
    # Celery declares a queue of `add_consumer` as classic, whatever the default type.
    assert lab.counts("late.retry.1.300ms", "late.quarantine") == {"late.retry.1.300ms": 0, "late.quarantine": 0}
    assert lab.task("add").apply_async((1, 2), queue="plain").get(timeout=SECONDS) == 3
    assert lab.counts("plain", "plain.quarantine") == {"plain": 0, "plain.quarantine": None}


def test_priorities_survive_parking(make_lab):
    lab = make_lab(conf={"task_queue_max_priority": 9, "task_default_priority": 2})
    lab.worker()
    result = lab.task("priority").apply_async(priority=7)

    assert result.get(timeout=SECONDS) == [7, 1]


@pytest.mark.brokers
def test_a_task_with_a_priority_does_not_overtake_those_that_are_due_before_it(make_lab):
    lab = make_lab("quorum", tiers=["2s", "4s"])
    lab.worker("prefork", 1)
    first = lab.task("priority").delay()
    wait_for(lambda: lab.parked() or len(lab.attempts(first.id)) == 2, "the first in its delay queue, or back from it")
    urgent = [lab.task("priority").apply_async(priority=9) for _ in range(10)]

    assert first.get(timeout=SECONDS)[1] == 1
    assert [result.get(timeout=SECONDS) for result in urgent] == [[9, 1]] * 10
    came_back = [attempt["id"] for attempt in lab.attempts() if attempt["retries"]]
    assert came_back[0] == first.id


@pytest.mark.brokers
@pytest.mark.parametrize("topology", ["levels", "hold", "loop"])
def test_calls_with_a_countdown_keep_their_priority_for_the_task(make_lab, queue_type, topology):
    lab = make_lab(queue_type, exact_delays=topology, exact_unit="500ms")
    lab.worker("prefork", 1)
    result = lab.task("priority").apply_async(priority=7, countdown=0.5)

    assert result.get(timeout=SECONDS) == [7, 1]


def test_a_plain_task_that_came_back_from_a_ladder_is_retried_along_its_first_route(lab):
    """After a rollback, Celery would publish its retry to an exchange that may be deleted by then."""
    lab.worker().stop()  # applies the ladder
    plain = lab.task("plain")
    result = plain.delay(0.1)
    with lab.app.connection_for_write() as connection:
        channel = connection.channel()
        message = wait_for(lambda: channel.basic_get("shop"), "the message")
        channel.basic_reject(message.delivery_tag, requeue=False)
    wait_for(lambda: lab.count("shop"), "the message back")
    lab.worker()
    fresh = plain.delay(0.1)

    assert result.get(timeout=SECONDS) == fresh.get(timeout=SECONDS) == "plain"
    routes = [attempt["route"] for task in (result, fresh) for attempt in lab.attempts(task.id)]
    assert routes == [routes[-1]] * 4


def test_two_vhosts_of_one_broker_share_no_messages(make_lab, own_broker):
    name = f"second-{uuid.uuid4().hex[:8]}"
    first = make_lab()
    second = make_lab(broker=own_broker.vhost(name))
    try:
        first.worker()
        second.worker()
        results = [lab.task("fails").delay(2) for lab in (first, second)]
        assert [result.get(timeout=SECONDS) for result in results] == [2, 2]
        assert [len(lab.attempts()) for lab in (first, second)] == [3, 3]
    finally:
        second.close()
        own_broker.delete_vhost(name)


#: The URL of a broker that is not there.
DEAD = "amqp://guest:guest@127.0.0.1:1//"


def it_works(lab):
    """Check that the broker's address is used for tasks and for copies."""
    lab.worker()
    assert lab.task("counts_up").delay(0).get(timeout=SECONDS) == 2
    assert lab.task("fails").delay(2).get(timeout=SECONDS) == 2


def test_a_fail_over_list_of_brokers_works_past_a_dead_one(make_lab, rmq_vhost):
    it_works(make_lab(broker=f"{DEAD};{rmq_vhost}"))


def test_separate_urls_for_reading_and_writing_work(make_lab, rmq_vhost):
    it_works(make_lab(broker=DEAD, conf={"broker_read_url": rmq_vhost, "broker_write_url": rmq_vhost}))


def test_a_producer_that_is_another_app_with_other_tiers_publishes_to_the_same_queue(running_classic):
    other = make_app(replace(running_classic.config, rmq_delay={"tiers": ["1h"]}))

    assert other.tasks["fails"].delay(2).get(timeout=SECONDS) == 2
    close_app(other)


@pytest.mark.brokers
@pytest.mark.parametrize("same_type", [True, False], ids=["same-type", "other-type"])
def test_a_worker_blames_no_task_that_one_with_another_prefix_has_rejected(make_lab, own_broker, queue_type, same_type):
    if queue_type == "quorum" and not same_type and own_broker.version < (4, 0, 0):
        pytest.skip("before RabbitMQ 4.0 a worker configured for classic queues cannot consume a quorum queue")
    lab = make_lab(queue_type)
    declared = queue_type if same_type else {"quorum": "classic", "classic": "quorum"}[queue_type]
    other = replace(lab.config, queue_type=declared, rmq_delay={**lab.config.rmq_delay, "prefix": "second"})
    workers = [lab.worker("prefork", 2), lab.worker("prefork", 2, config=other)]
    results = [lab.task("fails").delay(2) for _ in range(40)]

    assert [result.get(timeout=SECONDS) for result in results] == [2] * 40
    assert not any("quarantine" in worker.logs() for worker in workers)


def test_a_producer_without_this_package_publishes_to_a_queue_it_does_not_declare(running_classic):
    config = running_classic.config
    other = Celery("other", broker=config.broker, backend=config.backend, set_as_current=False)
    other.conf.task_queues = [Queue("shop", no_declare=True)]
    other.conf.task_default_queue = "shop"

    assert other.send_task("fails", (2,)).get(timeout=SECONDS) == 2
    close_app(other)


@pytest.mark.parametrize(
    ("queue_type", "pool"),
    [("quorum", "prefork"), slow("classic", "gevent"), slow("quorum", "gevent"), slow("classic", "prefork")],
)
def test_a_queue_that_existed_before_is_used_as_it_is_and_its_retries_are_forwarded(make_lab, queue_type, pool):
    lab = make_lab(queue_type)
    lab.declare({"x-queue-type": queue_type} if queue_type == "quorum" else {})
    worker = lab.worker(pool)
    result, hopeless = lab.task("fails").delay(2), lab.task("fails").delay(99)

    assert result.get(timeout=SECONDS) == 2
    assert [attempt["retries"] for attempt in lab.attempts(result.id)] == [0, 1, 2]
    assert {tuple(attempt["route"]) for attempt in lab.attempts(result.id)} == {("", "shop")}
    wait_for(lambda: hopeless.state == "FAILURE")
    assert len(wait_for(lambda: lab.take("rmq_delay.exhausted"))) == 1
    worker.wait_for_log("exists with other arguments")


@pytest.fixture
def tls_broker(tmp_path, rmq_installation):
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    port = free_port()
    config = f"listeners.ssl.default = 127.0.0.1:{port}\n"
    blobs = {"cacert": authority.cert_pem, "cert": server.cert_chain_pems[0], "key": server.private_key_pem}
    for name, blob in blobs.items():
        path = tmp_path / f"{name}.pem"
        blob.write_to_path(str(path))
        path.chmod(0o644)
        config += f"ssl_options.{name}file = {path}\n"
    with PrivateBroker(rmq_installation.server, rmq_installation.root, config=config):
        yield f"amqps://guest:guest@localhost:{port}//", tmp_path / "cacert.pem"


@pytest.mark.slow
def test_amqps_works(make_lab, tls_broker):
    url, authority = tls_broker
    ssl = {"ca_certs": str(authority), "server_hostname": "localhost"}
    it_works(make_lab(broker=url, conf={"broker_use_ssl": ssl}))
