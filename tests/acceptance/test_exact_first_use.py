"""The levels of exact delays are declared when a delay is first used, by publishers and by workers."""

from datetime import datetime, timedelta, timezone

import pytest

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import UnroutableError
from celery_rmq_delay.operations.pending import exact_pending
from celery_rmq_delay.operations.status import read_status
from celery_rmq_delay.topology.exact.levels import Levels
from tests.support.commands import run
from tests.support.corpus import slow
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import UNIT
from tests.support.workers.other_producer import publish, task_message
from tests.support.workers.roles import Permissions, add_user

#: Longer than a test takes.
FAR = 3_600


def levels_of(lab):
    (found,) = state_of(lab.app).exact.topologies
    assert isinstance(found, Levels)
    return found


def existing(lab):
    with lab.app.connection_for_read() as connection:
        return sum(count is not None for count in ready_counts(connection, levels_of(lab).holding()).values())


def delete_levels(lab, *numbers):
    levels = levels_of(lab)
    with lab.app.connection_for_write() as connection:
        for number in numbers:
            connection.default_channel.queue_delete(levels.level(number))
            connection.default_channel.exchange_delete(levels.level(number))


def wait_in_levels(lab):
    return sum(count or 0 for count in lab.counts(*levels_of(lab).holding()).values())


@pytest.mark.brokers
@pytest.mark.parametrize(("queue_type", "pool"), [("classic", "prefork"), ("quorum", "threads")])
def test_a_worker_declares_no_level_before_a_task_needs_one(make_lab, queue_type, pool):
    lab = make_lab(queue_type, exact_unit=UNIT)
    worker = lab.worker(pool, 2)
    assert lab.task("facts").apply_async(("no delay",)).get(timeout=SECONDS)
    assert existing(lab) == 0
    assert "exact delays (levels): nothing to do" in run(lab.app, "plan", "--no-management", code=None).output
    with lab.app.connection_for_read() as connection:
        assert [each.waiting for each in read_status(lab.app, connection).exact] == [0]

    due = datetime.now(timezone.utc) + timedelta(seconds=4)
    sent = [task_message("facts", [number], eta=due.isoformat()) for number in range(20)]
    for message in sent:  # by a producer without this package, so that the worker moves them
        publish(lab, message)
    wait_for(lambda: len(lab.attempts()) >= 21)

    assert sorted(attempt["id"] for attempt in lab.attempts()[1:]) == sorted(each.headers["id"] for each in sent)
    assert all(attempt["at"] >= due.timestamp() for attempt in lab.attempts()[1:])
    assert existing(lab) == len(levels_of(lab).holding())
    with lab.app.connection_for_read() as connection:
        assert not exact_pending(connection, state_of(lab.app).exact)
    assert "waits in this worker" not in worker.logs()
    assert "No connection for publishing copies" not in worker.logs()


def test_a_retry_during_a_warm_shutdown_is_the_first_use_and_waits(classic_lab):
    lab = classic_lab
    worker = lab.worker("prefork", 1)
    result = lab.task("waits_then_retries").apply_async((FAR,))
    wait_for(lambda: lab.attempts(result.id), "the task at the gate")

    worker.begin_stop()
    lab.open_gate()

    assert worker.wait() == 0
    assert (wait_in_levels(lab), lab.count("shop"), lab.count("rmq_delay.exhausted")) == (1, 0, 0)
    (waiting,) = [message for name in levels_of(lab).holding() for message in lab.take(name)]
    assert (waiting.headers["id"], waiting.headers["retries"]) == (result.id, 1)


def test_the_first_use_needs_no_connection_beyond_those_of_the_worker(make_lab, own_broker, rmq_vhost):
    url = add_user(own_broker, rmq_vhost, Permissions(".*", ".*", ".*"))
    user = url.split("//")[1].split(":")[0]
    lab = make_lab("classic", exact_unit=UNIT, broker=url, conf={"broker_pool_limit": 1})
    worker = lab.worker("threads", 2)
    used = own_broker.rabbitmqctl("list_connections", "user", "-q").split().count(user)
    own_broker.rabbitmqctl("set_user_limits", user, f'{{"max-connections": {used}}}')

    due = datetime.now(timezone.utc) + timedelta(seconds=2)
    late, healthy = (task_message("facts", ["x"], **more) for more in ({"eta": due.isoformat()}, {}))
    producer = make_lab("classic")  # another user
    for message in (late, healthy):
        publish(producer, message)

    wait_for(lambda: {each["id"] for each in lab.attempts()} == {late.headers["id"], healthy.headers["id"]})
    assert [each["id"] for each in lab.attempts()] == [healthy.headers["id"], late.headers["id"]]
    assert "user limit" not in worker.logs()


@pytest.mark.parametrize("deleted", [*(slow((each,)) for each in (0, 3)), range(28)], ids=["the lowest", "one", "all"])
def test_levels_deleted_while_a_worker_runs_are_restored_by_the_next_retry(classic_lab, deleted):
    lab = classic_lab
    lab.worker("prefork", 2)
    first = lab.task("explicit").apply_async((1,)).id
    wait_for(lambda: len(lab.attempts(first)) == 2)
    delete_levels(lab, *deleted)

    second = lab.task("explicit").apply_async((8,)).id  # enters at level 3
    wait_for(lambda: wait_in_levels(lab), "the retry that waits")
    if 3 not in deleted:
        lab.worker("prefork", 1)  # the entry exists: a worker's start restores what lies below

    assert existing(lab) == 28
    wait_for(lambda: len(lab.attempts(second)) == 2)
    assert lab.count("rmq_delay.exhausted") == 0


@pytest.mark.brokers
def test_a_publisher_that_may_not_declare_names_the_command_that_does(make_lab, own_broker, rmq_vhost):
    workers = make_lab("classic", exact_unit=UNIT)
    workers.worker("prefork", 1)
    url = add_user(own_broker, rmq_vhost, Permissions("^shop$", ".*", ".*"))
    lab = make_lab("classic", exact_unit=UNIT, broker=url, apply_on_start=False)

    with pytest.raises(UnroutableError, match=r"no exchange .*rmq-delay apply --exact-delays"):
        lab.task("facts").apply_async(("x",), countdown=1)
    assert run(workers.app, "apply", "--exact-delays").exit_code == 0
    task_id = lab.task("facts").apply_async(("x",), countdown=UNIT).id

    wait_for(lambda: workers.attempts(task_id))
    assert workers.count("rmq_delay.exhausted") == 0


@pytest.mark.brokers
def test_the_start_of_a_worker_leaves_two_lines_about_unused_levels_in_the_brokers_log(classic_lab, own_broker):
    classic_lab.worker("prefork", 1)

    def lines():
        log = own_broker.log_path.read_text(errors="replace").splitlines()
        return [line for line in log if "rmq_delay.levels" in line and classic_lab.vhost in line]

    wait_for(lambda: len(lines()) >= 2, "the lines, which RabbitMQ writes later")
    assert len(lines()) == 2


def test_apply_declares_the_levels_on_request(classic_lab):
    assert run(classic_lab.app, "apply").exit_code == 0
    assert existing(classic_lab) == 0
    assert run(classic_lab.app, "plan", "--no-management").exit_code == 0

    assert run(classic_lab.app, "apply", "--exact-delays").output.endswith("\nexact delays (levels): declared\n")

    assert existing(classic_lab) == 28
    assert run(classic_lab.app, "plan", "--no-management").exit_code == 0
