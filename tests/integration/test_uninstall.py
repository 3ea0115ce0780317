"""`uninstall` on a real broker: no message is lost, and no object of the package is left."""

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import amqp
import pytest
from celery import Celery
from kombu import Queue

from celery_rmq_delay import RetryableTask, install
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.inventory import plans
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import LockLostError
from celery_rmq_delay.management.client import Management
from celery_rmq_delay.operations import deletion
from celery_rmq_delay.operations.deletion import Runner, Step
from celery_rmq_delay.operations.uninstall.broker import Request
from celery_rmq_delay.operations.uninstall.run import uninstall
from tests.support.brokers.lab import Lab
from tests.support.commands import run
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.brokers, pytest.mark.usefixtures("patience", "quick")]

QUEUES = ("celery", "payments")


class _KilledError(Exception):
    """The run ends here, as by a kill."""


class Trace(NamedTuple):
    """What a vhost has, by the management API."""

    queues: frozenset[str]
    exchanges: frozenset[str]
    policies: frozenset[str]


class Shop:
    """An app with two queues on a vhost of its own."""

    def __init__(self, url, kind, management_url):
        self.url, self.kind, self.management_url = url, kind, management_url
        self.lab = Lab(url, kind)
        self.api = Management(management_url, self.lab.connection.virtual_host, "guest", "guest")
        self.before = self.trace()
        self.app = self.make()

    def make(self, **settings):
        """Return the app, with other settings."""
        app = Celery("shop", broker=self.url, set_as_current=False)
        app.conf.task_queues = [Queue(name, queue_arguments={"x-queue-type": self.kind}) for name in QUEUES]
        defaults = {"tiers": ["1h", "2h"], "exact_levels": 28, "events": True, "exact_queue_type": self.kind}
        app.conf.rmq_delay = {**defaults, **settings}
        install(app)

        @app.task(base=RetryableTask, name="shop.charge", shared=False)
        def charge():
            """Do nothing: no worker runs here."""

        return app

    def close(self):
        self.app.pool.force_close_all()
        self.app.close()
        self.api.close()
        self.lab.close()

    def trace(self):
        policies = frozenset(each.name for each in self.api.policies())
        return Trace(frozenset(self.api.queues()), frozenset(self.api.exchanges()), policies)

    @property
    def ours(self):
        """What was added, without the origin queues and Celery's own exchanges."""
        now, own = self.trace(), {*QUEUES, "celery.pidbox", "reply.celery.pidbox"}
        return Trace(*(after - before - own for after, before in zip(now, self.before, strict=True)))

    def assert_gone(self):
        """Check that nothing is left; Celery's own exchanges have the names of the queues."""
        assert self.ours == Trace(frozenset(), frozenset(), frozenset())
        assert self.trace().queues == self.before.queues

    def plan(self, queue="payments", app=None):
        (plan,) = plans(self.lab.connection, state_of(app or self.app), [queue])
        return plan

    def uninstall(self, *options, code=0, app=None):
        arguments = [
            *("uninstall", "--json", "--yes", *options),
            *(() if "--no-management" in options else ("--management-url", self.management_url)),
        ]
        found: dict[str, Any] = json.loads(run(app or self.app, *arguments, code=code).stdout)
        return found

    def park(self, task_id, tier_index, queue="payments"):
        """Publish a task and let it fail until it waits in this tier; return its delay queue."""
        plan = self.plan(queue)
        self.lab.publish(queue, f"body of {task_id}", headers={"id": task_id, "task": "shop.charge", "retries": 0})
        for _, _, tier in plan.delay_queues([plan.ladder])[:tier_index]:
            if self.lab.counts(plan):
                run(self.app, "release", "--queue", queue, task_id, code=None)
            before = self.count(tier.name)
            self.lab.reject(self.lab.get(queue))
            wait_for(lambda name=tier.name, before=before: self.count(name) > before)
        return tier.name

    def count(self, queue):
        return ready_counts(self.lab.connection, [queue])[queue] or 0

    def interrupted(self, monkeypatch, steps):
        """Run it, but no more than so many steps, as if it was killed; return whether it was."""
        left, take = [steps], Runner.take

        def limited(runner, step):
            left[0] -= 1
            if left[0] < 0:
                raise _KilledError
            return take(runner, step)

        with monkeypatch.context() as patch, self.app.connection_for_read() as connection:
            patch.setattr(Runner, "take", limited)
            try:
                uninstall(state_of(self.app), connection, Request(release=True), self.api)
            except _KilledError:
                return True
        return False

    def take(self, queue="payments"):
        """Take all messages of a queue, by the id of the task."""
        found = {}
        while message := self.lab.channel.basic_get(queue, no_ack=True):
            assert message.headers["id"] not in found
            found[message.headers["id"]] = message
        return found


@pytest.fixture
def quick(monkeypatch):
    """Wait less for statistics: those of this broker are young."""
    monkeypatch.setattr(deletion, "STATISTICS", 1.5)


@pytest.fixture
def shop(managed, managed_vhost, queue_type):
    shop = Shop(managed_vhost, queue_type, str(managed.management_url))
    yield shop
    shop.close()


@pytest.fixture
def applied(shop):
    run(shop.app, "apply", "--exact-delays")
    return shop


def due(message):
    """Return the seconds until the eta of a message."""
    return (datetime.fromisoformat(message.headers["eta"]) - datetime.now(timezone.utc)).total_seconds()


def is_stock(message):
    """Return whether a message has neither a header of the package nor a dead-letter history."""
    return not any(name.startswith(("rmq-delay-", "x-death", "x-first", "x-last")) for name in message.headers)


@pytest.mark.slow
def test_an_app_without_messages_leaves_no_object_but_its_declared_queues(applied):
    assert len(applied.ours.queues) > 30
    found = applied.uninstall(code=1)
    kept = {f"rmq_delay.{queue}.{end}" for queue in QUEUES for end in ("dlx", "other")}
    assert applied.ours == Trace(frozenset({"rmq_delay.exhausted"}), frozenset(kept), frozenset())
    assert {each["name"] for each in found["left"]} == {*QUEUES, *kept, "rmq_delay.exhausted"}
    assert found["verified"] is True

    applied.lab.publish("payments", headers={"id": "a"})  # a queue that stays loses no rejected message
    applied.lab.reject(applied.lab.get("payments"))
    wait_for(lambda: applied.take("rmq_delay.exhausted"))

    applied.uninstall("--delete-origin")
    applied.assert_gone()
    assert applied.uninstall()["deleted"] == []


@pytest.mark.slow
def test_an_app_that_never_used_an_exact_delay_leaves_no_object(shop):
    run(shop.app, "apply")
    shop.uninstall("--delete-origin")
    shop.assert_gone()


def test_parked_messages_of_each_tier_keep_their_attempts_and_their_due_time(applied):
    first, second = applied.park("a", 1), applied.park("b", 2)
    found = applied.uninstall(code=1)
    assert {first, second} <= {each["name"] for each in found["left"]}
    assert "unknown" not in json.dumps(found["left"])
    assert {each["name"] for each in found["left"]} >= applied.ours.queues | applied.ours.exchanges
    without = applied.uninstall("--no-management", code=1)
    markers = [each for each in found["left"] if ".applied." in each["name"]]  # deleted with the ladder in force
    assert {*map(str, without["left"])} == {str(each) for each in found["left"] if each not in markers}
    assert ready_counts(applied.lab.connection, [first, second]) == {first: 1, second: 1}

    found = applied.uninstall("--release", code=1)
    assert found["moved"] == {"payments": 2}
    messages = applied.take()
    assert {key: message.headers["retries"] for key, message in messages.items()} == {"a": 1, "b": 2}
    assert 3500 < due(messages["a"]) < 3610
    assert 7100 < due(messages["b"]) < 7210
    assert all(is_stock(message) for message in messages.values())
    assert all(message.delivery_info["exchange"] == "" for message in messages.values())
    applied.uninstall("--delete-origin")
    applied.assert_gone()


def test_a_parked_message_that_returns_in_time_is_waited_for(shop):
    app = shop.app = shop.make(tiers=["2s"])
    run(app, "apply")
    shop.park("a", 1)
    shop.uninstall("--wait", "1m", code=1)
    (message,) = shop.take().values()
    # It had returned by our exchange, to which stock Celery would publish its retry.
    assert (message.delivery_info["exchange"], message.headers["retries"], is_stock(message)) == ("", 1, True)


@pytest.mark.slow
def test_calls_with_an_exact_delay_get_their_eta_back(applied):
    eta = datetime.now(timezone.utc) + timedelta(hours=3)
    task = applied.app.tasks["shop.charge"]
    sent = {
        task.apply_async(queue="payments", countdown=60).id: 60,
        task.apply_async(queue="payments", eta=eta).id: 10_800,
    }
    found = applied.uninstall(code=1)
    assert sum(each["name"].startswith("rmq_delay.levels.") for each in found["left"]) >= 2
    applied.uninstall("--release", code=1)
    messages = applied.take()
    assert messages.keys() == sent.keys()
    for key, message in messages.items():
        assert sent[key] - 30 < due(message) < sent[key] + 2
        assert is_stock(message)
    assert not any("levels" in name for name in applied.ours.exchanges)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["hold", "loop"])
def test_messages_of_other_topologies_are_returned(shop, topology):
    app = shop.app = shop.make(exact_delays=topology)
    run(app, "apply")
    sent = app.tasks["shop.charge"].apply_async(queue="payments", countdown=600)
    assert shop.uninstall(code=1)["moved"] == {}
    shop.uninstall("--release", code=1)
    assert 500 < due(shop.take()[sent.id]) < 602
    shop.uninstall("--delete-origin")
    shop.assert_gone()


def test_quarantined_messages_go_back_to_their_queue(applied):
    headers = {"id": "a", "task": "shop.charge", "retries": 1, "rmq-delay-crashes": 1, "rmq-delay-exchange": ""}
    applied.lab.publish("payments.quarantine", headers=headers)
    assert applied.uninstall(code=1)["moved"] == {"payments": 1}
    message = applied.take()["a"]
    assert (message.headers["retries"], is_stock(message)) == (1, True)


def test_exhausted_messages_and_events_are_left_until_they_are_discarded(applied):
    for queue in ("rmq_delay.exhausted", "rmq_delay.events"):
        applied.lab.publish(queue, headers={"id": "a"})
    found = applied.uninstall("--delete-origin", code=1)
    assert {each["name"]: each["reason"] for each in found["left"]} == {
        "rmq_delay.exhausted": "It has 1 exhausted tasks.",
        "rmq_delay.events": "It has 1 events.",
    }
    assert applied.ours == Trace(frozenset({"rmq_delay.exhausted", "rmq_delay.events"}), frozenset(), frozenset())
    run(applied.app, "exhausted", "discard", "--all", "--yes")
    applied.uninstall("--discard-events")
    applied.assert_gone()


@pytest.mark.slow
def test_an_adopted_queue_keeps_its_messages_and_loses_only_its_policy(shop):
    shop.lab.queue("payments")
    shop.lab.publish("payments", headers={"id": "a", "retries": 0})
    run(shop.app, "apply")
    run(shop.app, "adopt", "--queue", "payments", "--yes", "--management-url", shop.management_url)
    assert shop.ours.policies == {"rmq_delay.payments"}
    assert "rmq_delay.payments" in {each["name"] for each in shop.uninstall("--no-management", code=1)["left"]}

    found = shop.uninstall("--delete-origin")
    assert {"kind": "policy", "name": "rmq_delay.payments"} in found["deleted"]
    assert shop.trace().queues == shop.before.queues | {"payments"}
    assert shop.ours == Trace(frozenset(), frozenset(), frozenset())
    assert set(shop.take()) == {"a"}


def test_a_script_without_yes_changes_nothing_and_gets_exit_code_1(applied):
    before = applied.trace()
    output = run(applied.app, "uninstall", "--management-url", applied.management_url, code=1).output
    assert "Uninstall? [y/N]" in output
    assert re.search(r"^would delete \d+ queues, \d+ exchanges \(--verbose lists them\)$", output, re.MULTILINE)
    assert "payments.quarantine" not in output
    output = run(applied.app, "uninstall", "--verbose", "--management-url", applied.management_url, code=1).output
    assert re.search(r"^would delete \d+ queues: .*\bpayments\.quarantine\b", output, re.MULTILINE)
    assert "Aborted!" in output
    assert applied.trace() == before


def test_it_is_refused_while_a_worker_of_the_package_consumes(applied):
    before = applied.trace()
    applied.lab.channel.basic_consume("payments.quarantine", callback=bool)
    arguments = ("uninstall", "--yes", "--management-url", applied.management_url)
    assert "payments.quarantine (1)" in run(applied.app, *arguments, code=1).output
    assert "would be refused now" in run(applied.app, *arguments, "--dry-run", code=2).output
    assert applied.trace() == before


@pytest.mark.slow
def test_it_is_refused_while_a_worker_that_stops_holds_messages(applied):
    applied.lab.publish("payments", headers={"id": "a"})
    message = applied.lab.get("payments")
    wait_for(lambda: applied.api.queues()["payments"].unacked)
    before, arguments = applied.trace(), ("uninstall", "--yes", "--management-url", applied.management_url)
    assert "holds messages of payments (1)" in run(applied.app, *arguments, code=1).output
    assert applied.trace() == before
    applied.lab.channel.basic_ack(message.delivery_tag)
    applied.uninstall("--delete-origin")
    applied.assert_gone()


@pytest.mark.slow
def test_parked_messages_whose_queue_is_gone_stay_and_are_exhausted_when_due(shop):
    app = shop.app = shop.make(tiers=["20s"])
    run(app, "apply")
    name = shop.park("a", 1)
    shop.lab.channel.queue_delete("payments")
    found = shop.uninstall("--release", code=1)
    reasons = {each["name"]: each["reason"] for each in found["left"]}
    assert reasons[name] == "queue 'payments' does not exist"
    shop.uninstall("--wait", "1m", "--delete-origin", code=1)
    assert shop.ours == Trace(frozenset({"rmq_delay.exhausted"}), frozenset(), frozenset())
    assert set(shop.take("rmq_delay.exhausted")) == {"a"}


def test_ready_messages_of_other_publishers_keep_their_properties(applied):
    for number in range(50):
        applied.lab.publish("payments", headers={"id": number, "tenant": "b"}, expiration="3600000", message_id="m")
    applied.uninstall(code=1)
    messages = applied.take()
    assert {*messages} == {*range(50)}
    if applied.kind == "classic":  # a quorum queue puts the last one that was inspected behind the others
        assert [*messages] == [*range(50)]
    for message in messages.values():
        assert message.headers["tenant"] == "b"
        assert (message.properties["expiration"], message.properties["message_id"]) == ("3600000", "m")


@pytest.mark.slow
def test_what_retries_of_a_stock_worker_may_need_is_left_while_one_consumes(applied):
    tag = applied.lab.channel.basic_consume("payments", callback=bool)
    found = applied.uninstall(code=1)
    left = {each["name"]: each for each in found["left"]}
    assert "Workers consume payments" in left["rmq_delay.return"]["reason"]
    assert {"rmq_delay.return", "rmq_delay.undeliverable"} <= applied.ours.exchanges
    assert "0 messages and 1 consumers" in applied.uninstall("--delete-origin", code=1)["left"][0]["reason"]
    applied.lab.channel.basic_cancel(tag)
    applied.uninstall("--delete-origin")
    applied.assert_gone()


def test_a_dry_run_changes_nothing_and_shows_what_a_run_does(applied):
    applied.park("a", 1)
    before = applied.trace()
    found = applied.uninstall("--release", "--dry-run", code=2)
    assert applied.trace() == before
    assert found["moved"] == {applied.plan().delay_queue(1, 3_600_000).name: 1}
    done = applied.uninstall("--release", code=1)
    planned = {(each["kind"], each["name"]) for each in found["deleted"]}
    assert planned >= {(each["kind"], each["name"]) for each in done["deleted"]}
    assert planned - {(each["kind"], each["name"]) for each in done["deleted"]} == {
        ("exchange", name) for name in before.exchanges if ".applied." in name
    }
    assert [each["name"] for each in done["left"]] == [each["name"] for each in found["left"]]
    assert applied.uninstall("--dry-run", code=1)["deleted"] == []


def test_one_queue_is_uninstalled_and_the_other_keeps_working(applied):
    name = applied.park("a", 1, "celery")
    applied.uninstall("--queue", "payments", "--delete-origin")
    assert not any("payments" in each for each in (*applied.ours.queues, *applied.ours.exchanges))
    assert ready_counts(applied.lab.connection, [name]) == {name: 1}
    applied.park("b", 1, "celery")


@pytest.mark.slow
def test_retired_ladders_and_other_units_and_types_are_found_by_the_management_api(shop):
    for settings in (
        {"tiers": ["3h"], "exact_unit": "5s"},
        {"tiers": ["4h", "5h"], "jitter": 0.2, "exact_delays": ["levels", "loop"]},
        {"tiers": ["1h"], "exact_queue_type": "classic" if shop.kind == "quorum" else "quorum"},
    ):
        run(shop.make(**settings), "apply")
    bare = shop.make(tiers=["1h"], queues={"payments": False})
    found = shop.uninstall("--delete-origin", app=bare, code=1)  # the settings leave this queue alone
    assert not any("payments" in each["name"] for each in found["deleted"])
    reasons = {each["name"]: each["reason"] for each in found["left"]}
    assert reasons["rmq_delay.return"].endswith("unknown to this app, is bound to it: payments.")
    shop.uninstall("--delete-origin")
    shop.assert_gone()


@pytest.mark.slow
def test_without_the_management_api_the_settings_and_the_records_name_the_objects(applied):
    run(applied.make(tiers=["5h"]), "apply")
    found = applied.uninstall("--no-management", "--delete-origin")
    assert (found["verified"], found["left"]) == (False, [])
    applied.assert_gone()


@pytest.mark.slow
@pytest.mark.parametrize("growth", [1.35, pytest.param(1.1, marks=pytest.mark.slow)])
def test_runs_that_are_killed_lose_nothing_and_the_next_one_continues(applied, monkeypatch, growth):
    published, taken = [applied.park("parked", 1) and "parked"], dict[str, amqp.Message]()
    steps = 1.0
    while applied.interrupted(monkeypatch, round(steps)):
        taken |= applied.take()
        name = f"rejected after {steps}"
        applied.lab.publish("payments", headers={"id": name, "retries": 0})
        applied.lab.reject(applied.lab.get("payments"))
        published.append(name)
        steps = steps * growth + 1
    applied.uninstall("--release", code=1)
    assert {*taken, *applied.take(), *applied.take("rmq_delay.exhausted")} == {*published}
    applied.uninstall("--delete-origin")
    applied.assert_gone()


@pytest.mark.slow
def test_a_worker_that_starts_after_a_killed_run_restores_the_ladder(applied, monkeypatch):
    for steps in (1, 8, 20):
        assert applied.interrupted(monkeypatch, steps)
        run(applied.app, "apply")
        applied.park(f"after {steps}", 1)
        applied.uninstall("--release", "--dry-run", code=2)


@pytest.mark.parametrize("queue_type", ["classic"])  # no broker tells the consumer of a quorum queue in time
def test_a_run_whose_lock_was_taken_back_leaves_the_ladder_of_the_next_holder(applied, monkeypatch):
    before, taken, take = applied.trace(), list[Step](), Runner.take

    def taken_over(runner, step):
        taken.append(step)
        if len(taken) == 3:
            for queue in QUEUES:
                applied.lab.channel.queue_delete(applied.plan(queue).record_queue().name)
            run(applied.app, "apply")
        return take(runner, step)

    monkeypatch.setattr(Runner, "take", taken_over)
    with applied.app.connection_for_read() as connection, pytest.raises(LockLostError):
        uninstall(state_of(applied.app), connection, Request(), applied.api)
    assert len(taken) == 3
    assert applied.trace() == before
