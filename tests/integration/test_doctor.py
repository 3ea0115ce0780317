"""The findings of the doctor on a broker."""

import json
import re
from dataclasses import replace

import kombu
import pytest
from celery import Celery

from celery_rmq_delay import RmqDelayError, install
from celery_rmq_delay.amqp.apply import declare
from celery_rmq_delay.amqp.capabilities import capabilities
from celery_rmq_delay.amqp.objects import Objects
from celery_rmq_delay.amqp.record import locked_record
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.management.client import URL_VARIABLE, Management
from celery_rmq_delay.names import quarantine
from celery_rmq_delay.operations.doctor import examine
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.brokers import lab_app as shops
from tests.support.brokers.lab import HOUR
from tests.support.brokers.lab_app import declare_exact, found, park, plan_of, shop
from tests.support.brokers.policies import policy
from tests.support.brokers.switching import lose_record
from tests.support.commands import data, run
from tests.support.waiting import BUSY, wait_for
from tests.support.workers.roles import Permissions, add_user


def opened(lab, **settings):
    """Return an app with all its objects in the broker, and its plan."""
    app, plan = shops.opened(lab, **settings)
    declare_exact(lab, app)
    return app, plan


def notes(app):
    return {each.code for each in examine(app, use_management=False) if not each.needs_a_person}


@pytest.mark.brokers
def test_an_app_that_was_never_applied_misses_its_objects(lab):
    app = shop(lab)
    assert set(found(app)) == {"missing", "ladder"}
    assert "rmq-delay apply" in found(app)["missing"].fix


@pytest.mark.brokers
def test_a_deleted_object_is_missing_and_one_with_other_arguments_is_a_conflict(lab):
    app, plan = opened(lab)
    assert found(app) == {}
    exchange = app._rmq_delay.exact.topologies[0].route(1000, "q").exchange
    lab.channel.exchange_delete(exchange)
    assert found(app)["exact-missing"].found == f"1 exchanges or queues are missing: {exchange}."
    lab.channel.exchange_delete(plan.names.returns)
    assert plan.names.returns in found(app)["missing"].found
    delay_queue = plan.delay_queue(1, HOUR).name
    lab.channel.queue_delete(delay_queue)
    lab.queue(delay_queue, **{"x-message-ttl": 1})
    finding = found(app)["conflict"]
    assert finding.severity == "error"
    assert delay_queue in finding.found


def test_settings_that_were_not_applied_are_found(lab):
    opened(lab, tiers=["1h", "2h", "3h"])
    app = shop(lab, tiers=["1h", "2h"])
    finding = found(app)["ladder"]
    assert "1h 2h 3h" in finding.found
    apply_plan(lab.connection, plan_of(lab, app))
    assert found(app) == {}
    assert notes(app) >= {"retired"}


def test_a_change_of_the_type_is_found_with_the_actions_of_an_apply(lab):
    _, old = opened(lab)
    lab.channel.queue_delete(old.queue)
    lab.queue_type = old.of_other_type.queue_type
    app = shop(lab)
    lab.origin(plan_of(lab, app))
    assert {"missing", "ladder"} <= found(app).keys()
    assert "conflict" not in found(app)
    assert "queue-type" in notes(app)
    quarantined = lab.channel.basic_consume(quarantine(old.queue))
    apply_plan(lab.connection, plan_of(lab, app))
    assert found(app) == {}
    (finding,) = [each for each in examine(app, use_management=False) if each.code == "queue-type"]
    assert f"{quarantine(old.queue)} is not as planned. It is a {old.queue_type} queue." in finding.found
    lab.channel.basic_cancel(quarantined)
    apply_plan(lab.connection, plan_of(lab, app))
    assert "queue-type" not in notes(app)


@pytest.mark.brokers
def test_a_switch_that_was_cut_off_is_found(lab):
    app, plan = opened(lab)
    with locked_record(lab.connection, plan.record_queue(), BUSY) as (_, record):
        assert record.value is not None
        record.save({**record.value, "phase": "standby", "following": plan.ladder.id})
    assert set(found(app)) == {"unfinished"}


@pytest.mark.brokers
def test_a_lost_record_is_found_with_a_fix_for_every_former_ladder(lab):
    app, plan = opened(lab)
    lose_record(lab, plan)
    assert found(app) == {}
    run(app, "apply")
    tasks = lab.plan(plan.ladder, {"task that was removed": Ladder((3 * HOUR,))}).tasks
    apply_plan(lab.connection, replace(plan, tasks=tasks))
    lose_record(lab, plan)
    finding = found(app)["record"]
    assert plan.record_queue().name in finding.found
    assert run(app, "plan", code=1).stdout.startswith(f"{plan.queue}:\n  ! the record of the ladder in force is gone")
    assert data(app, "plan", code=1)[0]["lost"] is True
    fix = re.sub(r"-A \S+", "-A shop", finding.fix)  # this process may have several apps
    assert fix in " ".join(run(app, "apply", code=1).output.split())

    consumer = lab.channel.basic_consume(plan.queue)
    assert "(consumers: 1): stop all its workers first" in run(app, "apply", "--reset", code=1).output
    lab.channel.basic_cancel(consumer)
    run(app, "apply", "--reset")
    assert found(app) == {}
    lose_record(lab, plan)
    assert found(app) == {}


@pytest.mark.brokers
def test_a_queue_without_our_dead_letter_exchange_is_found_and_left_until_a_policy_brings_it(managed, managed_lab):
    lab = managed_lab
    app = shop(lab)
    plan = plan_of(lab, app)
    lab.queue(plan.queue)
    apply_plan(lab.connection, plan)
    declare_exact(lab, app)
    for url in (None, managed.management_url):
        findings = found(app, url)
        assert set(findings) == {"dlx-missing"}
        assert plan.names.dlx(plan.queue) in findings["dlx-missing"].fix
    lab.queue(plan.queue)  # still the same arguments
    with policy(managed, plan.queue, f"^{plan.queue}$", {"dead-letter-exchange": plan.names.dlx(plan.queue)}):
        wait_for(lambda: not found(app, managed.management_url), "the policy")


@pytest.mark.brokers
def test_a_queue_with_other_arguments_of_its_own_is_found(classic_lab):
    app, plan = opened(classic_lab)
    app.amqp.queues[plan.queue].queue_arguments["x-max-priority"] = 5
    assert set(found(app)) == {"queue-arguments"}


def test_a_user_who_may_not_compare_a_queue_gets_a_note_unless_the_management_api_helps(managed, managed_lab):
    app, plan = opened(managed_lab)
    app.conf.broker_url = add_user(managed, managed_lab.url, Permissions("", ".*", ".*"))
    (finding,) = (each for each in examine(app, use_management=False) if each.code == "queue-arguments")
    assert (finding.severity, finding.subject) == ("note", plan.queue)
    assert "It is unknown whether it has our dead-letter exchange. ACCESS_REFUSED" in finding.found
    assert "queue-arguments" not in {each.code for each in examine(app, management_url=managed.management_url)}


@pytest.mark.brokers
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_a_delivery_limit_below_the_ladder_is_found(managed, managed_lab):
    lab = managed_lab
    app = shop(lab, tiers=["1h", "2h", "3h"])
    plan = plan_of(lab, app)
    app.amqp.queues[plan.queue].queue_arguments["x-delivery-limit"] = 4
    lab.applied(plan, **{"x-delivery-limit": 4})
    for url in (None, managed.management_url):
        finding = found(app, url)["delivery-limit"]
        assert "is 4; its ladder needs 5" in finding.found


@pytest.mark.brokers
@pytest.mark.parametrize("queue_type", ["quorum"])
@pytest.mark.parametrize("arguments", [{}, {"x-delivery-limit": -1}])
def test_a_policy_that_lowers_the_delivery_limit_is_found(managed, managed_lab, arguments):
    app = shop(managed_lab)
    plan = plan_of(managed_lab, app)
    app.amqp.queues[plan.queue].queue_arguments.update(arguments)
    managed_lab.applied(plan, **arguments)
    with policy(managed, plan.queue, f"^{plan.queue}$", {"delivery-limit": 2}):
        wait_for(lambda: "delivery-limit" in found(app, managed.management_url), "the policy")


@pytest.mark.brokers
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_a_policy_that_matches_managed_queues_is_found_with_one_that_protects_them(managed, managed_lab):
    lab = managed_lab
    app, plan = opened(lab, tiers=["10m", "1h"])

    def reached():  # queue by queue, as the statistics arrive
        finding = found(app, managed.management_url).get("policy")
        text = finding.found if finding else ""
        pairs = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in wanted.items()]
        return finding if quarantine(plan.queue) in text and all(pair in text for pair in pairs) else None

    wanted = {"message-ttl": 60_000, "max-length": 5, "delivery-limit": 20, "dead-letter-routing-key": "dead"}
    with policy(managed, "tidy", f"^{lab.names.prefix}", wanted):
        finding = wait_for(reached, "the policy")
        assert (finding.severity, finding.subject) == ("error", "tidy")
        command = re.search(r"set_policy .* rmq-delay-own '(.*)' '(.*)' --apply-to queues --priority 1", finding.fix)
        assert command
        own, definition = command.groups()
        with policy(managed, "rmq-delay-own", own, json.loads(definition), priority=1):
            wait_for(lambda: "policy" not in found(app, managed.management_url), "the policy that protects")
    wait_for(lambda: not found(app, managed.management_url), "the end of the policy")


@pytest.mark.brokers
def test_a_policy_that_changes_the_dead_letter_key_of_an_origin_queue_is_found(managed, managed_lab):
    app, plan = opened(managed_lab, tiers=["1h"])
    with policy(managed, "dead", f"^{re.escape(plan.queue)}$", {"dead-letter-routing-key": "dead"}):
        finding = wait_for(lambda: found(app, managed.management_url).get("dead-letter-key"), "the policy")
        assert (finding.severity, finding.subject) == ("error", plan.queue)
        assert "The policy 'dead' sets dead-letter-routing-key" in finding.found


def test_a_policy_with_a_ttl_longer_than_any_tier_is_no_harm_to_the_tiers(managed, managed_lab):
    lab = managed_lab
    app, plan = opened(lab, tiers=["10m"])
    (_, _, tier), *_ = plan.delay_queues([plan.ladder])
    with policy(managed, "long", f"^{re.escape(tier.name)}$", {"message-ttl": 3_600_000}):
        wait_for(lambda: managed_policy(managed, lab, tier.name) == "long", "the policy")
        assert "policy" not in found(app, managed.management_url)


def managed_policy(managed, lab, queue):
    with Management.of(lab.connection, managed.management_url) as management:
        detail = management.queue(queue)
    return detail.policy if detail else None


@pytest.mark.brokers
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_dead_letters_without_a_consumer_are_found(managed, managed_lab):
    lab = managed_lab
    app, plan = opened(lab)
    if not lab.reports_death_reason:
        lab.channel.exchange_unbind(plan.names.tasks(plan.queue), plan.names.other(plan.queue))
    lab.channel.exchange_delete(plan.names.tasks(plan.queue))
    lab.channel.exchange_delete(plan.names.other(plan.queue))
    park(lab, plan, "a")
    finding = wait_for(lambda: found(app, managed.management_url).get("dead-letters-waiting"), "the statistics")
    assert plan.queue in finding.found


@pytest.mark.brokers
def test_a_queue_that_was_deleted_and_declared_again_is_found_to_be_unbound(managed, managed_lab):
    lab = managed_lab
    app, plan = opened(lab)
    assert found(app, managed.management_url) == {}
    lab.channel.queue_delete(plan.queue)
    lab.origin(plan)
    finding = found(app, managed.management_url)["unbound"]
    assert finding.severity == "error"
    assert f"2 bindings are missing, so messages are lost or stuck: {plan.names.returns}" in finding.found
    planned = run(app, "plan", "--management-url", str(managed.management_url), code=2).stdout
    assert f"  + binding {plan.names.returns} -> {plan.queue} ({plan.queue}@1)" in planned
    apply_plan(lab.connection, plan)
    assert found(app, managed.management_url) == {}
    assert data(app, "plan", "--management-url", str(managed.management_url))[0]["unbound"] == []


def test_messages_that_wait_for_a_person_are_noted(lab):
    app, plan = opened(lab)
    lab.publish(plan.exhausted)
    lab.publish(f"{plan.queue}.quarantine")
    assert notes(app) >= {"exhausted", "quarantine"}


def test_a_missing_management_api_is_found_with_the_fix(classic_lab):
    app, _ = opened(classic_lab)
    finding = found(app, f"http://127.0.0.1:{free_port()}")["management"]
    assert "rabbitmq-plugins enable rabbitmq_management" in finding.fix
    assert URL_VARIABLE in finding.fix


def test_a_missing_broker_is_found():
    app = Celery("shop", broker=f"amqp://guest:secret@127.0.0.1:{free_port()}//", set_as_current=False)
    install(app)
    (finding,) = examine(app)
    assert (finding.code, finding.severity) == ("unreachable", "error")
    assert "secret" not in finding.subject


@pytest.mark.brokers
def test_a_broker_that_does_not_let_the_user_in_is_found(rmq_broker):
    connection = kombu.Connection(rmq_broker.url)
    broker = connection.clone(userid="unknown", password="secret").as_uri(include_password=True)
    app = Celery("shop", broker=broker, set_as_current=False)
    install(app)
    (finding,) = examine(app)
    assert finding.code == "unreachable"
    assert "ACCESS_REFUSED" in finding.found
    assert "secret" not in str(finding)


def test_an_app_without_install_is_refused_and_a_transport_that_cannot_park_is_found():
    app = Celery("shop", broker="memory://", set_as_current=False)
    with pytest.raises(RmqDelayError, match=r"install\(app\)"):
        examine(app)
    install(app)
    (finding,) = examine(app)
    assert finding.code == "transport"


@pytest.mark.brokers
def test_a_native_queue_that_no_worker_would_start_with_is_an_error(lab):
    app = shop(lab, retry="native", tiers=["1h"])
    finding = found(app).get("native")
    if lab.queue_type == "quorum" and capabilities(lab.connection).delays_retries:
        assert finding is None
        return
    assert finding is not None
    assert "needs" in finding.found
    assert '"retry": "ladder"' in finding.fix


@pytest.mark.brokers
def test_a_binding_to_a_ladder_that_is_not_in_force_is_found_and_removed(managed, managed_lab):
    lab = managed_lab
    _, old = opened(lab, tiers=["3h"])
    app, plan = opened(lab)
    extra = plan.from_active(old.ladder.id)
    declare(lab.channel, Objects(bindings=(extra,)))
    url = str(managed.management_url)

    finding = found(app, url)["doubled"]
    assert finding.found == f"1 bindings lead to ladders that are not in force, so retries run twice: {extra.text}."
    assert f"  - binding {extra.text}" in run(app, "plan", "--management-url", url, code=2).stdout
    run(app, "apply")
    assert found(app, url) == {}
    park(lab, plan, "a")
    assert wait_for(lambda: lab.counts(old, plan), "the parked message") == {plan.delay_queue(1, HOUR).name: 1}
