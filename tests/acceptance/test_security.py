"""The statements of `docs/explanation/security.md` about users, passwords and payloads."""

import json
import logging
import re
from contextlib import closing
from dataclasses import replace

import amqp
import kombu
import pytest
from amqp.exceptions import AccessRefused

from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.contrib.django.models import TaskRecord
from celery_rmq_delay.operations import exhausted
from celery_rmq_delay.operations.parked import release
from tests.support.commands import run
from tests.support.django.collecting import Rig
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.hostile_messages import body
from tests.support.workers.lab import Lab, close_app
from tests.support.workers.other_producer import publish, task_message
from tests.support.workers.project import make_app
from tests.support.workers.roles import PASSWORD, add_user, roles

EXHAUSTED, EVENTS = "rmq_delay.exhausted", "rmq_delay.events"
#: A role of the page.
IDLE = "worker that applies nothing"
CANARY = "c4n4ry-in-a-c04l-m1ne"


class Users:
    def __init__(self, broker, lab):
        self._broker, self._lab, self._table = broker, lab, roles()
        self.urls = {role: add_user(broker, lab.config.broker, self._table[role]) for role in self._table}
        self._labs: list[Lab] = []

    def lab(self, role):
        """Return a lab on the same vhost for a user with a role."""
        self._labs.append(Lab(replace(self._lab.config, broker=self.urls[role]), self._lab.folder))
        return self._labs[-1]

    def close(self):
        for lab in self._labs:
            lab.close()


@pytest.fixture
def users(own_broker):
    made: list[Users] = []

    def make(lab):
        made.append(Users(own_broker, lab))
        return made[-1]

    yield make
    for each in made:
        each.close()


def refused(url, act):
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        try:
            act(channel)
            channel.queue_declare("shop", passive=True)  # the broker has answered by then
        except AccessRefused:
            return True
        return False


def publishing(queue, exchange=""):
    return lambda channel: channel.basic_publish_confirm(amqp.Message(b"x"), exchange, queue)


def declaring(queue):
    return lambda channel: channel.queue_declare(queue, durable=True, auto_delete=False)


def reading(queue):
    return lambda channel: channel.basic_get(queue)


@pytest.mark.slow
def test_each_role_can_do_its_part_and_no_more(make_lab, users, sqlite):
    lab = make_lab(tiers=["200ms", "1h"], events=True)
    found = users(lab)
    urls = found.urls
    assert set(urls) == {
        "worker",
        "worker that applies nothing",
        "publisher",
        "narrow publisher",
        "collector",
        "operator",
    }
    worker = found.lab("worker")
    publisher = found.lab("publisher")
    with lab.app.connection_for_write() as connection:
        connection.default_channel.exchange_declare("orders", "topic", durable=True, auto_delete=False)

    process = worker.worker()
    with lab.app.connection_for_write() as connection:
        connection.default_channel.queue_bind("shop", "orders", "#")
    recovers = publisher.task("fails").delay(1)
    waits = publisher.task("fails").delay(2)
    gone = publisher.task("gives_up").delay()
    narrow = task_message("fails", [0])
    publish(found.lab("narrow publisher"), narrow, "orders", "created")
    wait_for(lambda: recovers.state == "SUCCESS", "a retry")
    wait_for(lambda: lab.attempts(narrow.headers["id"]), "the task of the narrow publisher")
    wait_for(lambda: len(lab.attempts(waits.id)) == 2, "the second failure of the task that is to wait for long")
    wait_for(lambda: lab.count(EXHAUSTED) == 1 and lab.parked() == 1, "one task each exhausted and parked")
    assert gone.state == "FAILURE"

    operator = found.lab("operator").app
    with operator.connection_for_write() as connection:
        delay = operator._rmq_delay
        assert release(connection, plans(connection, delay), task_ids=[waits.id]).released == [waits.id]
        assert len(exhausted.requeue(connection, delay.settings, exhausted.Selection(everything=True)).done) == 1
    wait_for(lambda: waits.state == "SUCCESS", "the released task")
    wait_for(lambda: lab.count(EXHAUSTED) == 1, "the requeued task in the exhausted queue again")

    with closing(Rig(lab.config.broker, {})) as rig:
        rig.delay.app.conf.broker_url = urls["collector"]
        collected = TaskRecord.objects.filter(state="EXHAUSTED")
        wait_for(lambda: rig.collect() or collected.exists(), "the collector", pause=0.2)

    for role in ("narrow publisher", "collector"):
        for queue in ("shop", EVENTS, EXHAUSTED, "other"):
            assert refused(urls[role], publishing(queue)), (role, queue)
        assert refused(urls[role], publishing("shop@1", "rmq_delay.return"))
    for role in ("publisher", "narrow publisher", "collector", "operator"):
        assert refused(urls[role], declaring("another.queue")), role
        assert refused(urls[role], declaring("shop.quarantine")), role
        assert refused(urls[role], publishing("", "celery.pidbox")), role
    for role in ("publisher", "narrow publisher"):
        for queue in (EVENTS, EXHAUSTED, "shop.retry.1.200ms", "shop.quarantine"):
            assert refused(urls[role], reading(queue)), (role, queue)
    assert refused(urls["collector"], reading("shop"))
    assert refused(urls["operator"], reading("shop"))
    assert not refused(urls["publisher"], publishing(EVENTS)), "the page states that RabbitMQ cannot separate this"
    assert refused(urls["worker"], declaring("another.queue"))
    assert not process.exited


@pytest.mark.brokers
def test_a_worker_without_apply_on_start_needs_no_permission_to_configure_ladders(make_lab, users):
    applies = make_lab(tiers=["200ms"], events=True)
    applies.worker().stop()
    run(applies.app, "apply", "--exact-delays")
    lab = make_lab(tiers=["200ms"], events=True, apply_on_start=False)
    found = users(lab)

    process = found.lab(IDLE).worker()
    recovers, gone = lab.task("fails").delay(1), lab.task("gives_up").delay()

    assert recovers.get(timeout=SECONDS) == 1
    wait_for(lambda: lab.count(EXHAUSTED) == 1, "the task that gives up")
    assert gone.state == "FAILURE"
    assert refused(found.urls[IDLE], declaring("shop.quarantine"))
    assert not process.exited


FORMAT = "\x1e%(name)s\x1f%(message)s"


def records(log, name):
    """Yield the records of loggers whose name begins with ``name``, with their tracebacks."""
    for record in log.split("\x1e"):
        logger, _, text = record.partition("\x1f")
        if logger.startswith(name):
            yield text


FATES: dict[str, amqp.Message] = {
    "fails": task_message("fails", [99], kwargsrepr=f"{{'password': '{CANARY}'}}"),
    "gives up": task_message("gives_up", [], argsrepr=f"(password={CANARY!r},)"),
    "kills": task_message("kills_child", [99]),
    "unknown": task_message("no.such.task", [CANARY]),
    "no UTF-8": body(b"\xff" + CANARY.encode()),
    "no JSON": body(f'{{"{CANARY}'.encode()),
    "no call": body(json.dumps([CANARY]).encode()),
    "wrong arguments": body(json.dumps([[CANARY], {}, {}]).encode()),
    "no number": task_message("fails", [CANARY]),
    "wrong eta": task_message("fails", [99], tenant=CANARY, eta="never"),
    "pickle": body(CANARY.encode(), "application/x-python-serialize", "binary"),
    "unknown type": body(CANARY.encode(), "text/x-nothing"),
}


@pytest.mark.slow
def test_no_payload_and_no_password_gets_into_our_logs_and_events(make_lab, users, sqlite, caplog):
    caplog.set_level(logging.DEBUG)
    conf = {"worker_hijack_root_logger": True, "worker_log_format": FORMAT, "worker_task_log_format": FORMAT}
    lab = make_lab(tiers=["100ms"], events=True, conf=conf)
    found = users(lab)
    url, worker = found.urls["worker"], found.lab("worker")
    process = worker.worker("prefork", 2, "--loglevel", "DEBUG")
    for message in FATES.values():
        publish(lab, message)
    wait_for(lambda: process.exited or lab.count(EXHAUSTED) >= len(FATES), "all exhausted")
    events = [each.body for each in lab.take(EVENTS)]
    process.stop()
    events += [each.body for each in lab.take(EVENTS)]
    log = process.logs()

    assert PASSWORD not in log
    ours = list(records(log, "celery_rmq_delay"))
    assert any("Cannot read a message" in each for each in ours), "the format of the log was not used"
    assert not [each for each in ours if CANARY in each]
    assert len(events) >= len(FATES)
    leaks = [each for each in events if CANARY in (each if isinstance(each, str) else each.decode())]
    assert not leaks

    caplog.clear()
    app = make_app(worker.config)
    commands = ("plan", "apply", "status", "doctor --no-management", "doctor", "prune", "release --all --queue shop")
    commands += ("exhausted list", "exhausted requeue --all --to nowhere", "exhausted discard --all --yes", "migrate")
    commands += ("capacity --rate 1/s --failure-rate 1%", "adopt --queue shop --yes", "release no-such-task")
    commands += ("delete-queue shop",)
    for command in commands:
        assert PASSWORD not in run(app, *command.split(), code=None).output, command
    close_app(app)
    with closing(Rig(lab.config.broker, sqlite.environ)) as rig:
        rig.send(*FATES.values(), CANARY.encode())
        with rig.command("--once", "--verbosity", "3", BROKER_URL=url) as collector:
            collector_output, _ = collector.communicate(timeout=SECONDS)
    assert collector.returncode == 0, collector_output
    for text in (caplog.text, collector_output):
        assert PASSWORD not in text
    assert CANARY not in collector_output
    assert not [
        each.getMessage() for each in caplog.records if "rmq_delay" in each.name and CANARY in each.getMessage()
    ]


def test_a_password_that_is_wrong_is_in_no_error(lab):
    url = re.sub("//.*@", f"//user:{PASSWORD}@", lab.config.broker)
    output = run(make_app(replace(lab.config, broker=url)), "status", code=1)
    assert "Error" in output.output
    assert PASSWORD not in output.output
