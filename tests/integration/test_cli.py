"""The commands as a user types them."""

import json
import os
import subprocess
import sys

import amqp
import pytest
from celery import Celery

from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import drift, ready_counts
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.brokers.lab import HOUR
from tests.support.brokers.lab_app import opened, park, plan_of, shop
from tests.support.commands import data, run
from tests.support.corpus import corpus
from tests.support.waiting import SECONDS, wait_for


def wait_parked(lab, app, count):
    wait_for(lambda: data(app, "status")["queues"][0]["parked"] == count, f"{count} parked")


def test_a_fresh_vhost_is_planned_applied_and_then_as_planned(lab):
    app = shop(lab)
    plan = plan_of(lab, app)
    text = run(app, "plan", code=2).output
    assert f"  + queue {plan.delay_queue(1, HOUR).name}" in text
    assert "  ~ ladder: none -> 1h 2h" in text
    names = [plan.queue, plan.record_queue().name]
    assert ready_counts(lab.connection, names) == dict.fromkeys(names)
    assert data(app, "apply") == [{"queue": plan.queue, "changed": True, "rejects": True}]
    assert drift(lab.connection, plan.objects()) == []
    assert data(app, "plan")[0]["create"] == []
    assert run(app, "plan").stdout == f"{plan.queue}: nothing to do\nexact delays (levels): nothing to do\n"
    assert data(app, "apply")[0]["changed"] is False
    lab.publish(plan.queue)
    lab.reject(lab.get(plan.queue))
    wait_parked(lab, app, 1)
    changed = shop(lab, tiers=["1h", "3h"], repeat_last=True)
    assert "~ ladder: 1h 2h -> 1h 3h and again" in run(changed, "plan", code=2).output
    run(changed, "apply")
    assert "nothing to do" in run(changed, "plan").output


def test_the_queue_of_events_is_planned_applied_counted_and_watched(classic_lab):
    app, _ = opened(classic_lab, events=True, events_max_length=1000)
    name = classic_lab.names.events
    assert f"events:\n  + queue {name}\n" in run(app, "plan", code=2).output
    assert f"events ({name}): does not exist yet" in run(app, "status").output
    run(app, "apply")
    assert "events: nothing to do" in run(app, "plan").output
    for _ in range(900):
        classic_lab.channel.basic_publish(amqp.Message(b"{}"), routing_key=name)
    wait_for(lambda: data(app, "status")["events"] == {"queue": name, "waiting": 900}, "all events")
    assert f"events ({name}): 900 waiting" in run(app, "status").output
    assert "900 of at most 1000 events wait" in run(app, "doctor", "--no-management", code=1).output


def test_a_plan_without_the_management_api_warns_that_bindings_are_not_compared(classic_lab):
    app, _ = opened(classic_lab)
    run(app, "apply")
    address = f"http://127.0.0.1:{free_port()}"
    planned = run(app, "plan", "--management-url", address)
    assert "nothing to do" in planned.stdout
    assert planned.stderr.startswith(f"Bindings are not compared: No management API at {address}")
    assert "Bindings" not in run(app, "plan", "--no-management").stderr
    assert data(app, "plan", "--no-management")[0]["unbound"] is None


def test_plan_and_doctor_name_the_tasks_that_may_outlive_the_time_out(classic_lab):
    app, _ = opened(classic_lab)
    for name, limit in (("short", 600), ("long", 3600)):

        @app.task(name=name, base=RetryableTask, shared=False, time_limit=limit)
        def task(): ...

    run(app, "apply")
    planned = run(app, "plan", "--no-management")
    assert "Note: These tasks have no time_limit below 30 minutes: long, shop.charge." in planned.stderr
    (finding,) = [each for each in data(app, "doctor", "--no-management") if each["code"] == "consumer-timeout"]
    assert finding["severity"] == "note"
    assert "set consumer_timeout in rabbitmq.conf" in finding["fix"]


def test_an_object_that_apply_cannot_change_is_reported_with_exit_code_1(classic_lab):
    app, plan = opened(classic_lab)
    delay_queue = plan.delay_queue(1, HOUR).name
    classic_lab.channel.queue_delete(delay_queue)
    classic_lab.queue(delay_queue, **{"x-message-ttl": 1})
    assert f"! queue {delay_queue} cannot be changed" in run(app, "plan", code=1).output
    assert "rmq-delay doctor" in run(app, "apply", code=1).output


def test_an_origin_queue_without_dead_lettering_is_left_and_logged(lab, caplog):
    app = shop(lab)
    plan = plan_of(lab, app)
    lab.queue(plan.queue)
    assert data(app, "apply") == [{"queue": plan.queue, "changed": True, "rejects": False}]
    assert "forwarded" in caplog.text


def test_the_state_is_a_table_with_the_parked_messages(lab):
    app, plan = opened(lab)
    park(lab, plan, "a", "b")
    wait_parked(lab, app, 2)
    lines = run(app, "status", "--no-management").output.splitlines()
    assert lines[0].split() == ["QUEUE", "READY", "QUARANTINE", "TIER", "DELAY", "PARKED", "NEXT", "DUE"]
    assert lines[1].split()[:6] == [plan.queue, "0", "0", "1", "1h", "2"]
    assert lines[-2:] == [f"exhausted ({plan.exhausted}): 0 messages", "exact delays (levels, unit 1s): 0 waiting"]


def test_the_doctor_ends_with_1_only_when_an_operator_has_to_act(classic_lab, monkeypatch):
    app, plan = opened(classic_lab)
    run(app, "apply")
    monkeypatch.setitem(sys.modules, "httpx", None)  # as without the extra `management`
    (missing,) = [each for each in data(app, "doctor") if each["code"] == "management"]
    assert missing["severity"] == "note"
    assert missing["found"].startswith("The management API needs httpx")
    assert missing["fix"] == "Run pip install 'celery-rmq-delay[management]'."
    monkeypatch.undo()
    classic_lab.publish(plan.exhausted)

    def codes():
        return {each["code"] for each in data(app, "doctor", "--no-management")}

    wait_for(lambda: codes() - {"broker-version"} == {"exhausted", "consumer-timeout"}, "the notes")
    classic_lab.channel.exchange_delete(plan.names.returns)
    text = run(app, "doctor", "--no-management", code=1).output
    assert text.startswith(f"error: {plan.queue}: ")
    assert "-> Run `celery -A shop rmq-delay apply`" in text


def test_a_parked_task_is_released_and_a_second_time_not_found(lab):
    app, plan = opened(lab)
    park(lab, plan, "a", "b")
    wait_parked(lab, app, 2)
    assert run(app, "release", "a").output == "released a\n"
    assert "not parked: a" in run(app, "release", "a", code=1).output
    wait_parked(lab, app, 1)
    assert data(app, "release", "--all", "--queue", plan.queue, "--tier", "2h")["released"] == []
    assert data(app, "release", "--all", "--queue", plan.queue, "--tier", "60m")["released"] == ["b"]


def test_a_queue_that_neither_the_app_nor_the_broker_has_gets_no_ladder(classic_lab):
    app, plan = opened(classic_lab)
    refused = run(app, "apply", "--queue", "paymnets", code=1).output
    assert "neither the app nor the broker has a queue of this name" in refused
    assert plan.queue in refused
    elsewhere = classic_lab.queue()
    assert f"{elsewhere}:" in run(app, "plan", "--queue", elsewhere, code=2).output


def test_all_parked_tasks_are_released_only_of_a_named_queue(classic_lab):
    app, _ = opened(classic_lab)
    assert "--all needs --queue" in run(app, "release", "--all", code=2).output
    assert "--tier" in run(app, "release", "a", "--tier", "soon", code=2).output


def bury(lab, queue, *task_ids, **headers):
    for task_id in task_ids:
        lab.publish(queue, headers={"id": task_id, "task": "shop.charge", **headers})


def test_exhausted_tasks_are_listed_sent_back_and_discarded(lab):
    app, plan = opened(lab)
    bury(lab, plan.exhausted, "a", "b", "c", "d", **{h.QUEUE: plan.queue, h.EXCEPTION: "shop.errors.Lost"})
    lines = run(app, "exhausted", "list", "--exception", "Lost", "--limit", "2").output.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["a", "b"]
    assert "there may be more" in lines[-1]
    assert "requeued b (shop.charge)" in run(app, "exhausted", "requeue", "b").output
    assert lab.get(plan.queue).headers["id"] == "b"
    assert "Discard 3 exhausted tasks" in run(app, "exhausted", "discard", "--all", code=1, typed="n\n").output
    assert [each["task_id"] for each in data(app, "exhausted", "list")["done"]] == ["a", "c", "d"]
    run(app, "exhausted", "discard", "a", typed="y\n")
    assert [each["task_id"] for each in data(app, "exhausted", "discard", "--all", "--yes")["done"]] == ["c", "d"]
    # A quorum queue reports the consumer of the discard for a moment longer.
    wait_for(lambda: run(app, "exhausted", "list").output == "No exhausted message matches.\n")


def test_a_message_that_cannot_be_requeued_is_reported_with_exit_code_1(lab):
    app, plan = opened(lab)
    bury(lab, plan.exhausted, "a")
    refused = run(app, "exhausted", "requeue", "--all", code=1).output
    assert "not requeued: a (shop.charge): Its origin queue is unknown" in refused
    assert data(app, "exhausted", "requeue", "a", "--to", plan.queue)["failed"] == []
    assert data(app, "exhausted", "requeue", "a", code=1)["not_found"] == ["a"]


@pytest.mark.parametrize("command", ["adopt --queue shop", "uninstall", "exhausted discard --all"])
def test_a_command_with_json_does_not_ask_and_needs_yes(classic_lab, command):
    app, _ = opened(classic_lab)
    output = run(app, *command.split(), "--json", code=2).output
    assert "--json does not ask for confirmation: add --yes." in output


def test_an_origin_queue_is_deleted_and_its_messages_can_be_requeued(lab):
    app = shop(lab)
    plan = plan_of(lab, app)
    run(app, "apply")
    lab.publish(plan.queue, "parked")
    lab.reject(lab.get(plan.queue))
    wait_parked(lab, app, 1)
    lab.publish(plan.queue, "back")

    unseen = run(app, "delete-queue", "--management-url", f"http://127.0.0.1:{free_port()}", plan.queue, code=1)
    assert "No management API at" in unseen.output
    deleted = run(app, "delete-queue", "--no-management", plan.queue).output
    assert "deleted. 1 of its messages went to the exhausted queue" in deleted
    assert ready_counts(lab.connection, [plan.queue]) == {plan.queue: None}
    assert run(app, "apply").output.endswith("as planned\n")
    run(app, "exhausted", "requeue", "--all")
    run(app, "release", "--all", "--queue", plan.queue)
    assert sorted(lab.get(plan.queue, ack=True).body for _ in range(2)) == ["back", "parked"]


def test_a_retired_ladder_is_pruned(lab):
    _, old = opened(lab, tiers=["3h"])
    app = shop(lab)
    run(app, "apply")
    assert "kept ladder" in run(app, "prune", "--no-management").output
    assert f"deleted {old.delay_queue(1, 3 * HOUR).name}" in run(app, "prune", "--now", "--no-management").output
    assert run(app, "prune", "--no-management").output == "Nothing to prune.\n"


def test_one_queue_of_several_can_be_named(classic_lab):
    lab = classic_lab
    other = f"{lab.names.prefix}-other"
    app = shop(lab, queues={other: {"tiers": ["5h"]}, "left-alone": False})
    lab.forget(other, f"{other}.quarantine", f"{other}.retry.1.5h", lab.names.record(other))
    planned = [each["queue"] for each in data(app, "plan", code=2)]
    assert planned == [other, app.conf.task_default_queue, "exact delays (levels)"]
    assert [each["queue"] for each in data(app, "plan", "--queue", other, code=2)] == [other]
    assert [each["queue"] for each in data(app, "apply", "--queue", other)] == [other]
    assert [each["queue"] for each in data(app, "status", "--queue", other)["queues"]] == [other]
    assert "has no ladder" in run(app, "status", "--queue", "left-alone", code=1).output


@corpus("command", ["plan", "apply", "status", "prune", "exhausted list", "release x"])
def test_a_missing_broker_is_one_line_without_the_password(command):
    app = Celery("shop", broker=f"amqp://guest:secret@127.0.0.1:{free_port()}//", set_as_current=False)
    install(app)
    (line,) = run(app, *command.split(), code=1).output.splitlines()
    assert line.startswith("Error: amqp://guest:**@127.0.0.1")
    assert "refused" in line


def test_a_missing_install_and_another_transport_are_one_line():
    app = Celery("shop", broker="memory://", set_as_current=False)
    (line,) = run(app, "status", code=1).output.splitlines()
    assert "celery_rmq_delay.install(app)" in line
    install(app)
    (line,) = run(app, "status", code=1).output.splitlines()
    assert "memory" in line


PROJECT = """
from celery import Celery
from celery_rmq_delay import install

app = Celery("proj", broker={url!r}, include=["proj_tasks"])
app.conf.task_default_queue = {queue!r}
app.conf.rmq_delay = {{"prefix": {prefix!r}, "tiers": ["1h"]}}
install(app)
"""
TASKS = """
from celery_rmq_delay import RetryableTask
from proj import app

@app.task(base=RetryableTask, tiers=["2h"])
def ping():
    pass
"""


def test_the_celery_command_finds_the_tasks_of_the_project(classic_lab, tmp_path):
    lab, queue = classic_lab, f"{classic_lab.names.prefix}-q"
    (tmp_path / "proj.py").write_text(PROJECT.format(url=lab.url, queue=queue, prefix=lab.names.prefix))
    (tmp_path / "proj_tasks.py").write_text(TASKS)
    command = [sys.executable, "-m", "celery", "-A", "proj", "rmq-delay", "plan", "--no-management", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2, done.stderr
    found, _ = json.loads(done.stdout)
    assert found["tasks"] == {"proj_tasks.ping": {"from": "none", "to": "2h"}}
    assert done.stderr == ""
