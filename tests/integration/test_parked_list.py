"""`rmq-delay parked list`: parked tasks with their due times, without Django."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.state import state_of
from tests.support.brokers.lab import HOUR
from tests.support.brokers.lab_app import declare_exact, opened, park
from tests.support.commands import data, run


def listed(app, *options):
    """Return the listed tasks, without those of other tests' messages."""
    found: list[dict[str, Any]] = data(app, "parked", "list", *options)["tasks"]
    return found


def due(found):
    return datetime.fromisoformat(found["due"])


@pytest.mark.brokers
def test_parked_tasks_are_listed_with_tier_attempts_and_due_time(lab):
    app, plan = opened(lab, tiers=["1h", "2h"])
    start = datetime.now(timezone.utc)
    park(lab, plan, "a", "b")
    lab.publish(plan.delay_queue(2, 2 * HOUR).name, "body", headers={"id": "c", "task": "shop.other", "retries": 2})

    found = listed(app)

    assert [(each["task_id"], each["tier_index"], each["delay_ms"], each["attempts"]) for each in found] == [
        ("a", 1, HOUR, 1),
        ("b", 1, HOUR, 1),
        ("c", 2, 2 * HOUR, 2),
    ]
    assert {each["queue"] for each in found} == {plan.queue}
    for each in found[:2]:
        assert timedelta(0) <= due(each) - start - timedelta(hours=1) < timedelta(minutes=2)
    assert timedelta(0) <= due(found[2]) - start - timedelta(hours=2) < timedelta(minutes=2)


@pytest.mark.brokers
@pytest.mark.parametrize("topology", ["levels", "loop"])
def test_tasks_with_an_exact_delay_are_listed_with_their_exact_due_time(lab, topology):
    app, plan = opened(lab, exact_delays=topology, exact_levels=16)
    declare_exact(lab, app)
    before = datetime.now(timezone.utc)
    sent = app.tasks["shop.charge"].apply_async(countdown=1800)
    after = datetime.now(timezone.utc)

    (found,) = listed(app)

    assert (found["task_id"], found["queue"], found["tier_index"], found["attempts"]) == (sent.id, plan.queue, None, 0)
    assert before <= due(found) - timedelta(seconds=1800) <= after + timedelta(milliseconds=1)
    assert listed(app, "--tier", "exact") == [found]
    assert listed(app, "--tier", "1h") == []


def test_a_list_can_be_limited_to_a_queue_a_task_and_a_tier(classic_lab):
    app, plan = opened(classic_lab, tiers=["1h", "2h"])
    park(classic_lab, plan, "a")
    park(classic_lab, plan, "b", task="shop.other")
    classic_lab.publish(plan.delay_queue(2, 2 * HOUR).name, "body", headers={"id": "c", "task": "shop.other"})

    def ids(*options):
        return [each["task_id"] for each in listed(app, *options)]

    assert ids("--queue", plan.queue) == ["a", "b", "c"]
    assert ids("--task", "shop.other") == ["b", "c"]
    assert ids("--tier", "1h", "--task", "shop.other") == ["b"]
    assert "neither the app nor the broker" in run(app, "parked", "list", "--queue", "nowhere", code=1).output
    assert "--tier: found 'soon'" in run(app, "parked", "list", "--tier", "soon", code=2).output


def test_what_cannot_be_listed_is_named_with_the_reason(classic_lab):
    app, _ = opened(classic_lab, exact_delays=["levels", "hold"])

    found = data(app, "parked", "list", "--management-url", "http://127.0.0.1:1")

    assert [*found["unlisted"]] == ["hold"]
    assert "No management API" in found["unlisted"]["hold"]
    shown = run(app, "parked", "list", "--management-url", "http://127.0.0.1:1").output
    assert shown.startswith("No parked task matches.\nnot listed: exact delays (hold): ")


def table(app):
    """Return the lines of the list, without the note of RabbitMQ 4.1 and later about the inspected tasks."""
    return [line for line in run(app, "parked", "list").output.splitlines() if "has marked the inspected" not in line]


def test_a_list_has_a_line_per_task_states_that_there_are_more_and_leaves_them_parked(classic_lab):
    app, plan = opened(classic_lab, tiers=["1h", "2h"])
    park(classic_lab, plan, "a", "b", "c")
    found = data(app, "parked", "list", "--limit", "2")
    assert ([each["task_id"] for each in found["tasks"]], found["complete"]) == (["a", "b"], False)
    assert "There are more" in run(app, "parked", "list", "--limit", "2").output
    heading, line, *others = table(app)
    assert heading.split() == ["TASK", "ID", "TASK", "QUEUE", "TIER", "DELAY", "ATTEMPTS", "DUE"]
    assert line.split()[:6] == ["a", "shop.charge", plan.queue, "1", "1h", "1"]
    assert len(others) == 2, "no remark that there are more"
    assert data(app, "parked", "list")["complete"] is True
    delay_queue = plan.delay_queue(1, HOUR).name
    assert ready_counts(classic_lab.connection, [delay_queue]) == {delay_queue: 3}
    assert [each["task_id"] for each in listed(app)] == ["a", "b", "c"]


def test_a_due_time_that_is_no_time_does_not_hide_the_other_tasks(classic_lab):
    app, plan = opened(classic_lab, exact_delays="levels")
    declare_exact(classic_lab, app)
    level = state_of(app).exact.topologies[0].holding()[3]
    for task_id, due_ms in (("a", 2**62), ("b", 4_000_000_000_000)):
        facts = {"id": task_id, "task": "shop.charge", h.DUE: due_ms, h.TO: plan.queue}
        classic_lab.publish(level, "body", headers=facts)

    assert {each["task_id"]: bool(each["due"]) for each in listed(app)} == {"a": False, "b": True}


def test_control_characters_of_a_message_do_not_reach_the_terminal(classic_lab):
    app, plan = opened(classic_lab, tiers=["1h"])
    park(classic_lab, plan, "a\x1b[2Jb", task="shop\n.charge" + "x" * 5_000)
    shown = table(app)
    assert "\x1b" not in "".join(shown)
    assert len(shown) == 2
    assert max(map(len, shown)) < 500
