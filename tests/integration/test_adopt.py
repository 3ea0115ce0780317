"""Adopting a queue on a real broker: policies, refusals, and crashes in between."""

import json
import re
import uuid
from dataclasses import replace
from typing import Any

import httpx
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.apply import consumer_count
from celery_rmq_delay.app.inventory import applied
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import TopologyError
from celery_rmq_delay.ladders import QueueType
from celery_rmq_delay.management.client import Management
from celery_rmq_delay.management.records import Policy, pattern_of
from celery_rmq_delay.operations import adoption
from celery_rmq_delay.operations.adoption import Adopter
from celery_rmq_delay.testing.servers.broker import erlang_binary
from celery_rmq_delay.topology.applied import Adoption
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan, save_adoption
from tests.support.brokers.lab import Lab
from tests.support.brokers.lab_app import declare_exact, found, plan_of, shop
from tests.support.commands import run
from tests.support.examples import examples
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("patience")


class Shop:
    """An app whose queue exists without our dead-letter exchange, on a managed broker."""

    def __init__(self, lab, managed, **arguments):
        self.lab, self.managed = lab, managed
        self.app: Celery = shop(lab)
        self.plan: LadderPlan = plan_of(lab, self.app)
        self.queue = self.plan.queue
        self.policy = lab.names.policy(self.queue)
        if not arguments.pop("missing", False):
            lab.queue(self.queue, **arguments)
        self.api = Management(str(managed.management_url), "/", "guest", "guest")
        self.http = httpx.Client(base_url=f"{managed.management_url}/api/")
        self.adopter = Adopter(state_of(self.app), lab.connection, self.api)

    def close(self):
        for policy in self.api.policies():
            self.api.delete_policy(policy.name)
        for policy in self.http.get("operator-policies/%2F").json():
            self.http.delete(f"operator-policies/%2F/{policy['name']}")
        self.api.close()
        self.http.close()

    def command(self, *options, code=0, typed=None):
        url = str(self.managed.management_url)
        return run(self.app, "adopt", "--queue", self.queue, "--management-url", url, *options, code=code, typed=typed)

    def policies(self):
        return {policy.name: policy for policy in self.api.policies()}

    def other(self, name="theirs", priority=10, **definition):
        """Write an operator's policy for the queue, and wait until the broker shows it."""
        policy = Policy(
            name, f"^{self.queue}$", {key.replace("_", "-"): each for key, each in definition.items()}, priority
        )
        self.api.put_policy(policy)
        wait_for(lambda: self.detail().policy == name)
        return policy

    def operator(self, **definition):
        body = {"pattern": f"^{self.queue}$", "apply-to": "queues", "definition": definition}
        self.http.put("operator-policies/%2F/limits", json=body).raise_for_status()
        wait_for(lambda: self.detail().operator_policy == "limits")

    def detail(self):
        consumer_count(self.lab.connection, self.queue)  # an unused queue has no statistics
        found = self.api.queue(self.queue)
        assert found is not None
        return found

    def adoption(self):
        return applied(self.lab.connection, self.plan).adoption

    def assert_advances(self):
        """Reject one message and check that it is parked in the first tier."""
        before = sum(self.lab.counts(self.plan).values())
        self.lab.publish(self.queue)
        self.lab.reject(self.lab.get(self.queue))
        wait_for(lambda: sum(self.lab.counts(self.plan).values()) == before + 1, "the message in the first tier")


@pytest.fixture
def existing(managed, managed_lab):
    made: list[Shop] = []

    def make(**arguments):
        made.append(Shop(managed_lab, managed, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.brokers
def test_a_queue_is_adopted_after_a_dry_run_and_a_confirmation_and_detached(existing):
    shop = existing()
    text = shop.command("--dry-run", code=2).output
    assert f"+ policy {shop.policy}: pattern ^{re.escape(shop.queue)}$, priority 1" in text
    assert f"+ dead-letter-exchange: {shop.plan.names.dlx(shop.queue)}" in text
    assert "Aborted" in shop.command(code=1, typed="n\n").output
    assert shop.policies() == {}

    assert "adopted: its failed tasks are rejected" in shop.command(typed="y\n").output
    (policy,) = shop.policies().values()
    assert (policy.name, policy.pattern, policy.apply_to) == (shop.policy, pattern_of(shop.queue), "queues")
    shop.assert_advances()
    assert shop.command("--dry-run").output == f"{shop.queue}: is adopted, nothing to do\n"
    declare_exact(shop.lab, shop.app)
    assert found(shop.app, shop.managed.management_url) == {}
    facts = shop.adoption()
    assert facts is not None
    assert (facts.in_force, facts.queue_type, facts.delivery_limit) == (True, shop.lab.queue_type, None)

    assert f"- policy {shop.policy}" in shop.command("--undo", "--dry-run", code=2).output
    assert "detached" in shop.command("--undo", "--yes").output
    assert shop.policies() == {}
    facts = shop.adoption()
    assert facts is not None
    assert not facts.in_force
    assert shop.command("--undo").output == f"{shop.queue}: is not adopted\n"


def test_the_commands_answer_programs_also_whether_an_adopted_queue_rejects(existing):
    shop = existing()
    assert json.loads(run(shop.app, "apply", "--json").stdout)[0]["rejects"] is False
    (planned,) = json.loads(shop.command("--dry-run", "--json", code=2).stdout)
    assert planned["changes"]["dead-letter-exchange"] == {"from": None, "to": shop.plan.names.dlx(shop.queue)}
    (done,) = json.loads(shop.command("--yes", "--json").stdout)
    assert (done["rejects"], done["workers"], done["unanswered"], done["policy"]) == (True, {}, 0, shop.policy)
    assert json.loads(run(shop.app, "apply", "--json").stdout)[0]["rejects"] is True
    (back,) = json.loads(shop.command("--undo", "--yes", "--json").stdout)
    assert back["rejects"] is False


@pytest.mark.brokers
def test_the_policy_that_applies_is_merged_and_stays(existing):
    shop = existing()
    theirs = shop.other(max_length=100, message_ttl=3_600_000)
    shop.command("--yes")
    policies = shop.policies()
    assert policies["theirs"] == theirs
    assert theirs.definition.items() <= policies[shop.policy].definition.items()
    assert policies[shop.policy].priority == 11
    shop.assert_advances()

    shop.api.put_policy(Policy("theirs", theirs.pattern, {"max-length": 50}, 20))
    wait_for(lambda: "adoption-lost" in found(shop.app, shop.managed.management_url))
    assert "~ max-length: 100 -> 50" in shop.command("--yes").output
    assert shop.policies()[shop.policy].priority == 21
    shop.api.put_policy(Policy("theirs", theirs.pattern, {"max-length": 40}, 20))
    declare_exact(shop.lab, shop.app)
    outdated = found(shop.app, shop.managed.management_url)
    refuses = {"overflow"} if shop.lab.queue_type == "quorum" else set()
    assert set(outdated) == {"adoption-outdated"} | refuses
    assert "max-length" in outdated["adoption-outdated"].found
    shop.command("--yes")
    shop.command("--undo", "--yes")
    assert set(shop.policies()) == {"theirs"}


@pytest.mark.brokers
def test_an_operator_policy_goes_on_applying_and_is_not_copied(existing):
    shop = existing()
    quorum = shop.lab.queue_type == "quorum"
    # A policy with a key that is not for its type does not apply to a queue at all.
    shop.operator(**{"max-length": 9, **({"delivery-limit": 7} if quorum else {})})
    assert "the operator policy limits still applies" in shop.command("--yes").output
    detail = shop.detail()
    assert (detail.operator_policy, detail.policy_definition["max-length"]) == ("limits", 9)
    assert "max-length" not in shop.policies()[shop.policy].definition
    facts = shop.adoption()
    assert facts is not None
    assert facts.delivery_limit == (7 if quorum else None)
    delay = state_of(shop.app)
    delay.differing.add(shop.queue)
    delay.learn(shop.queue, facts)
    assert delay.rejects(shop.queue)
    assert delay.rejections_allowed(shop.queue) == (5 if quorum else 2**31)


def test_a_policy_written_by_hand_is_noted_and_taken_over(existing):
    shop = existing()
    apply_plan(shop.lab.connection, shop.plan)
    shop.other(dead_letter_exchange=shop.plan.names.dlx(shop.queue))
    declare_exact(shop.lab, shop.app)
    assert found(shop.app, shop.managed.management_url) == {}
    shop.command("--yes")
    assert set(shop.policies()) == {"theirs", shop.policy}


def declared_as_another_type(shop):
    """Declare a shop's queue with the other type, which is refused; return that type."""
    queue = shop.app.amqp.queues[shop.queue]
    other = "quorum" if shop.lab.queue_type == "classic" else "classic"
    queue.queue_arguments["x-queue-type"] = other
    assert state_of(shop.app).is_quorum(shop.queue) == (other == "quorum")
    with shop.app.connection_for_write() as connection:
        queue.bind(connection.channel()).declare()
    return other


@pytest.mark.brokers
def test_the_type_of_a_queue_is_detected_despite_other_arguments(existing):
    shop = existing(**{"x-dead-letter-exchange": "elsewhere", "x-message-ttl": 3_600_000, "x-max-length": 1000})
    other = declared_as_another_type(shop)
    assert state_of(shop.app).is_quorum(shop.queue) == (other == "classic")


def test_the_queue_of_another_type_than_the_settings_is_known_by_its_own(existing):
    shop = existing()
    other = declared_as_another_type(shop)
    delay = state_of(shop.app)
    assert delay.is_quorum(shop.queue) == (other == "classic")
    shop.command("--yes")
    delay.learn(shop.queue, shop.adoption())
    assert delay.is_quorum(shop.queue) == (other == "classic")
    assert delay.queue_type(shop.queue) == other
    shop.plan = plan_of(shop.lab, shop.app)  # delay queues have the type of the settings
    shop.assert_advances()


# -- refusals ------------------------------------------------------------------------------------------------------

DEAD = "x-dead-letter-exchange"
REFUSED: dict[str, tuple[QueueType, dict[str, Any]]] = {
    "There is no queue": ("classic", {"missing": True}),
    "has the argument x-dead-letter-exchange='theirs'": ("quorum", {DEAD: "theirs"}),
    "is stream": ("classic", {"x-queue-type": "stream"}),
    "x-overflow='drop-head'": ("quorum", {"x-overflow": "drop-head"}),
}


@pytest.mark.parametrize(("error", "queue_type", "arguments"), [(error, *each) for error, each in REFUSED.items()])
def test_a_queue_that_no_policy_can_adopt_is_refused(existing, error, arguments):
    shop = existing(**arguments)
    assert error in " ".join(shop.command("--yes", code=1).output.split())
    assert shop.policies() == {}


def test_a_queue_that_has_our_exchange_or_that_the_app_does_not_know_has_nothing_to_adopt(existing):
    shop = existing(missing=True)
    shop.lab.origin(shop.plan)
    assert "there is nothing to adopt" in shop.command("--yes", code=1).output
    for options in (["--undo", "--replace"], ["--force"]):
        assert "--replace is for adopting" in shop.command(*options, code=2).output
    shop.app.conf.task_create_missing_queues = False
    del shop.app.amqp.queues
    assert "has no ladder" in shop.command("--queue", "x", code=1).output


@pytest.mark.brokers
@pytest.mark.parametrize("queue_type", ["quorum"])
def test_an_operator_policy_that_keeps_dead_letters_from_being_safe_is_refused(
    managed, existing, patience, monkeypatch
):
    if managed.version < (4, 0, 0):
        pytest.skip("operator policies set no overflow before RabbitMQ 4.0")
    monkeypatch.setattr(adoption, "PATIENCE", replace(patience, effect=2))
    shop = existing()
    shop.operator(overflow="drop-head")
    assert "operator policy 'limits' sets overflow='drop-head'" in shop.command("--yes", code=1).output
    shop.other(overflow="drop-head")  # hides it from the plan, not from the check of the policy in effect
    output = shop.command("--yes", code=1).output
    assert "was not in effect after" in output
    assert set(shop.policies()) == {"theirs"}
    assert shop.adoption() is None


def test_a_queue_that_dead_letters_elsewhere_by_policy_is_adopted_only_with_replace(existing):
    shop = existing()
    shop.other(dead_letter_exchange="theirs", dead_letter_routing_key="k")
    assert "use --replace" in shop.command("--yes", code=1).output
    output = shop.command("--replace", "--yes").output
    assert f"~ dead-letter-exchange: theirs -> {shop.plan.names.dlx(shop.queue)}" in output
    assert "- dead-letter-routing-key: k" in output
    shop.assert_advances()


def test_a_policy_of_our_name_that_is_not_ours_is_left_alone(existing):
    shop = existing()
    theirs = shop.other(shop.policy, max_length=3)
    for options in (["--yes"], ["--undo", "--yes"]):
        assert "that this package did not write" in shop.command(*options, code=1).output
    assert shop.policies() == {shop.policy: theirs}


def test_a_policy_that_an_operator_changed_is_not_deleted(existing):
    shop = existing()
    shop.command("--yes")
    ours = shop.policies()[shop.policy]
    shop.api.put_policy(Policy(ours.name, ours.pattern, {**ours.definition, "max-length": 4}, ours.priority))
    assert "was changed after it was written" in shop.command("--undo", "--yes", code=1).output
    facts = shop.adoption()
    assert facts is not None
    assert facts.in_force
    assert "- max-length: 4" in shop.command("--yes").output
    shop.command("--undo", "--yes")
    assert shop.policies() == {}


def test_a_user_without_permission_to_write_policies_gets_an_error_and_changes_nothing(existing):
    shop = existing()
    name = f"u{uuid.uuid4().hex[:8]}"
    shop.http.put(f"users/{name}", json={"password": "x", "tags": "management"}).raise_for_status()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    shop.http.put(f"permissions/%2F/{name}", json=everything).raise_for_status()
    url = f"http://{name}:x@127.0.0.1:{shop.managed.settings.management_port}"
    output = shop.command("--yes", "--management-url", url, code=1).output
    assert "policymaker" in output
    assert shop.adoption() is None
    shop.http.delete(f"users/{name}").raise_for_status()


class Cut(Exception):
    """Ends the process here."""


@pytest.mark.parametrize("step", ["put_policy", "queue", "save_adoption", "broadcast"])
def test_a_command_that_is_cut_off_can_lose_no_message_and_can_be_repeated(existing, monkeypatch, step):
    shop = existing()
    plan = shop.adopter.plan(shop.queue)

    def cut(*_, **__):
        raise Cut

    def interrupted(action):
        with monkeypatch.context() as patch:
            if step == "save_adoption":
                patch.setattr(adoption, step, cut)
            elif step == "broadcast":
                patch.setattr(type(shop.app.control), step, cut)
            else:
                patch.setattr(Management, step, cut)
            with pytest.raises(Cut):
                action()

    interrupted(lambda: shop.adopter.adopt(plan))
    facts = shop.adoption()
    if facts and facts.in_force:
        shop.assert_advances()
    shop.adopter.adopt(shop.adopter.plan(shop.queue))
    facts = shop.adoption()
    assert facts is not None
    assert facts.in_force

    back = shop.adopter.plan_undo(shop.queue)
    if step != "put_policy":
        interrupted(lambda: shop.adopter.undo(back))
        shop.assert_advances()
    shop.adopter.undo(shop.adopter.plan_undo(shop.queue))
    assert shop.policies() == {}
    facts = shop.adoption()
    assert facts is not None
    assert not facts.in_force


def test_a_policy_that_is_gone_is_an_error_that_the_same_command_fixes(existing):
    shop = existing()
    shop.command("--yes")
    shop.api.delete_policy(shop.policy)
    wait_for(lambda: "adoption-lost" in found(shop.app, shop.managed.management_url))
    finding = found(shop.app, shop.managed.management_url)["adoption-lost"]
    assert finding.severity == "error"
    assert f"adopt --queue {shop.queue}" in finding.fix
    shop.command("--yes")
    declare_exact(shop.lab, shop.app)
    assert found(shop.app, shop.managed.management_url) == {}
    shop.assert_advances()


def test_strict_settings_allow_a_queue_only_while_it_is_adopted(existing):
    shop_ = existing()
    strict = shop(shop_.lab, strict=True)
    queue = strict.amqp.queues[shop_.queue]
    with pytest.raises(TopologyError, match=f"adopt --queue {shop_.queue}"):
        queue(shop_.lab.channel).declare()
    shop_.command("--yes")
    queue(shop_.lab.channel).declare()
    assert state_of(strict).differing == {shop_.queue}


def test_a_record_that_an_older_version_wrote_is_that_of_a_queue_that_was_not_adopted(existing):
    shop = existing()
    apply_plan(shop.lab.connection, shop.plan)
    assert shop.adoption() is None
    saved = save_adoption(shop.lab.connection, shop.plan, Adoption(True, 0, "classic"))
    assert saved.generation == 1
    assert save_adoption(shop.lab.connection, shop.plan, saved).generation == 2
    apply_plan(shop.lab.connection, shop.plan)
    facts = shop.adoption()
    assert facts is not None
    assert facts.generation == 2


# -- patterns ------------------------------------------------------------------------------------------------------

ODD = ["a.b", "a b", "(x)*[y]{2}?", "a|b", "^a$", "back\\slash", "ü-名-🐇", "\\Qa\\E", "#&~", "tab\tx", "/", "%2F", "+"]
NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0"), min_size=1, max_size=20)


@pytest.mark.brokers
@given(st.lists(NAMES, min_size=30, max_size=30))
@examples(0.5)
def test_the_brokers_own_regular_expressions_match_exactly_the_queue(managed, names):
    calls = [
        f"re:run({erlang_binary(name)}, {erlang_binary(pattern_of(queue))}, [{{capture, none}}])"
        for queue in names
        for name in (queue, f"x{queue}", f"{queue}x", queue[:-1])
    ]
    answers = re.findall(r"nomatch|match", managed.evaluate(f"[{', '.join(calls)}]"))
    assert answers == ["match", "nomatch", "nomatch", "nomatch"] * len(names)


@pytest.mark.brokers
def test_a_policy_applies_to_queues_with_odd_names_and_to_no_other(managed):
    lab = Lab(managed.url, "classic")
    with Management(str(managed.management_url), "/", "guest", "guest") as api:
        for odd in ODD:
            queue = f"{lab.names.prefix}{odd}"
            for name in (queue, f"x{queue}", f"{queue}x"):
                lab.queue(name)
            api.put_policy(Policy(f"p {queue}", pattern_of(queue), {"max-length": 3}))
        expected = {f"{lab.names.prefix}{odd}" for odd in ODD}
        wait_for(lambda: {name for name, detail in api.queues().items() if detail.policy} == expected)
        for policy in api.policies():
            api.delete_policy(policy.name)
    lab.close()


def test_line_breaks_are_no_part_of_a_queues_name(classic_lab):
    name = f"{classic_lab.names.prefix}-break"
    assert classic_lab.channel.queue_declare(f"{name}\n\r", durable=True, auto_delete=False).queue == name
    classic_lab.forget(name)
