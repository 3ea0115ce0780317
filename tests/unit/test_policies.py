"""The policy that adopts a queue, and queues that no policy can adopt."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.cli.text import policy_text, undo_text
from celery_rmq_delay.exceptions import AdoptionError
from celery_rmq_delay.management.records import (
    Policy,
    QueueDetail,
    applying,
    differences,
    effective_limit,
    pattern_of,
    plan_policy,
)
from celery_rmq_delay.names import Names
from celery_rmq_delay.operations.adoption import UndoPlan
from celery_rmq_delay.topology.applied import Adoption, Applied
from tests.support.corpus import corpus

NAMES = Names("rmq_delay")
DLX = "rmq_delay.shop.dlx"
# RabbitMQ strips line breaks from the names of queues.
QUEUE_NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0"), min_size=1)


def detail(**changes):
    return replace(QueueDetail("shop", "classic", {}, None, {}, 0), **changes)


@given(QUEUE_NAMES, st.text())
def test_a_pattern_matches_its_queue_and_no_other(queue, more):
    pattern = pattern_of(queue).encode()
    assert re.search(pattern, queue.encode())
    assert not re.search(pattern, f"x{queue}".encode())
    assert not re.search(pattern, f"{queue}x".encode())
    other = (queue + more).rstrip("\n\r")  # `$` also matches before a line break, which no queue's name has
    assert bool(re.search(pattern, other.encode())) == (other == queue)


@given(QUEUE_NAMES)
def test_a_policy_survives_json(queue):
    policy = Policy("p", pattern_of(queue), {"max-length": 3}, 7)
    assert Policy.from_json({"name": "p", "vhost": "/", **policy.to_json()}) == policy
    assert policy.fits(queue, "classic")


def test_a_queue_without_policy_gets_one_of_its_own():
    plan = plan_policy(NAMES, detail(), [])
    assert plan.policy == Policy("rmq_delay.shop", "^shop$", {"dead-letter-exchange": DLX}, 1, "queues")
    assert plan.changes == {"dead-letter-exchange": (None, DLX)}
    assert (plan.present, plan.base, plan.is_written) == (None, None, False)
    safe = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}
    quorum = plan_policy(NAMES, detail(type="quorum"), [])
    assert quorum.policy.definition == {"dead-letter-exchange": DLX, **safe}


def test_the_policy_is_merged_from_the_applied_one_and_has_the_highest_priority():
    policies = [
        Policy("all", ".*", {"max-length": 5, "overflow": "drop-head"}, 3, "all"),
        Policy("low", "^shop", {"message-ttl": 1}, 2),
        Policy("others", "^other", {}, 50),
        Policy("exchanges", "shop", {}, 60, "exchanges"),
        Policy("quorum", "shop", {}, 70, "quorum_queues"),
        Policy("classic", "shop$", {"expires": 1}, 1, "classic_queues"),
    ]
    plan = plan_policy(NAMES, detail(policy="all"), policies)
    assert plan.policy.definition == {"max-length": 5, "overflow": "drop-head", "dead-letter-exchange": DLX}
    assert (plan.policy.priority, plan.base) == (4, policies[0])
    changed = plan_policy(NAMES, detail(type="quorum"), policies[:3])
    assert changed.changes["overflow"] == ("drop-head", "reject-publish")


def test_a_policy_that_the_broker_does_not_apply_to_this_type_of_queue_is_not_merged():
    policies = [
        Policy("quorum only", "shop", {"delivery-limit": 5, "max-length": 3}, 9),
        Policy("mirrors", "shop", {"ha-mode": "all"}, 8),
    ]
    classic, quorum = (plan_policy(NAMES, detail(type=kind), policies) for kind in ("classic", "quorum"))
    assert (classic.base, quorum.base) == (policies[1], policies[0])


def test_a_pattern_that_only_the_broker_can_read_is_outranked_and_trusted_when_it_applies():
    odd = Policy("odd", "^sh(?|o)p[[:alpha:]]*$", {"max-length": 5}, 8)
    assert odd.fits("shop", "classic") is None
    assert plan_policy(NAMES, detail(), [odd]).policy.priority == 9
    assert plan_policy(NAMES, detail(), [odd]).base is None
    assert plan_policy(NAMES, detail(policy="odd"), [odd]).base == odd


def test_the_one_of_several_equal_policies_that_the_broker_uses_is_merged():
    policies = [Policy(name, "shop", {}, 1) for name in "abc"]
    assert applying(policies, "shop", "classic", "b") == policies[1]
    assert applying([], "shop", "classic") is None


def test_an_operator_policy_is_not_copied_and_named():
    found = detail(operator_policy="limits", policy_definition={"max-length": 9})
    plan = plan_policy(NAMES, found, [])
    assert plan.policy.definition == {"dead-letter-exchange": DLX}
    assert plan.operator_policy == "limits"
    assert "operator policy limits still applies" in policy_text(plan)
    classic = detail(operator_policy="op", policy_definition={"overflow": "drop-head"})  # which a quorum queue refuses
    assert plan_policy(NAMES, classic, []).operator_policy == "op"


def test_our_policy_is_written_again_when_the_policy_below_it_changed():
    base = Policy("all", ".*", {"max-length": 6}, 3)
    ours = Policy("rmq_delay.shop", "^shop$", {"max-length": 5, "dead-letter-exchange": DLX}, 4)
    plan = plan_policy(NAMES, detail(policy=ours.name), [base, ours])
    assert plan.changes == {"max-length": (5, 6)}
    assert not plan.is_written
    assert plan_policy(NAMES, detail(policy=ours.name), [base, plan.policy]).is_written


REFUSED = {
    "is stream": ({"type": "stream"}, []),
    "is not lasting": ({"lasting": False}, []),
    "nothing to adopt": ({"arguments": {"x-dead-letter-exchange": DLX}}, []),
    "argument x-dead-letter-exchange='theirs'": ({"arguments": {"x-dead-letter-exchange": "theirs"}}, []),
    "argument x-dead-letter-routing-key='k'": ({"arguments": {"x-dead-letter-routing-key": "k"}}, []),
    "argument x-overflow='drop-head'": ({"type": "quorum", "arguments": {"x-overflow": "drop-head"}}, []),
    "argument x-dead-letter-strategy": (
        {"type": "quorum", "arguments": {"x-dead-letter-strategy": "at-most-once"}},
        [],
    ),
    "did not write (pattern 'shop'": ({}, [Policy("rmq_delay.shop", "shop", {"dead-letter-exchange": DLX})]),
    "did not write (pattern '^shop$', dead-letter-exchange None)": ({}, [Policy("rmq_delay.shop", "^shop$", {})]),
    "exchange 'theirs' by the policy 'p'": ({}, [Policy("p", "shop", {"dead-letter-exchange": "theirs"})]),
    "with routing key 'k'": ({}, [Policy("p", "shop", {"dead-letter-routing-key": "k"})]),
    "operator policy 'op' sets overflow='drop-head'": (
        {"type": "quorum", "operator_policy": "op", "policy_definition": {"overflow": "drop-head"}},
        [],
    ),
}


@corpus("error, case", REFUSED.items())
def test_a_queue_that_no_policy_can_adopt_is_refused(error, case):
    changes, policies = case
    with pytest.raises(AdoptionError, match=re.escape(error)) as raised:
        plan_policy(NAMES, detail(**changes), policies)
    assert "shop" in str(raised.value)


def test_a_policy_that_dead_letters_elsewhere_is_replaced_with_the_option_only():
    theirs = Policy("p", "shop", {"dead-letter-exchange": "theirs", "dead-letter-routing-key": "k", "expires": 9})
    plan = plan_policy(NAMES, detail(), [theirs], replace=True)
    assert plan.policy.definition == {"dead-letter-exchange": DLX, "expires": 9}
    assert plan.changes == {"dead-letter-exchange": ("theirs", DLX), "dead-letter-routing-key": ("k", None)}


def test_the_change_is_shown_key_by_key():
    base = Policy("all", ".*", {"max-length": 5, "overflow": "drop-head"}, 3)
    plan = plan_policy(NAMES, detail(type="quorum"), [base])
    assert policy_text(plan).splitlines() == [
        "shop (quorum):",
        "  + policy rmq_delay.shop: pattern ^shop$, priority 4",
        "    merged from the policy all (priority 3), which stays",
        "      max-length: 5",
        f"    + dead-letter-exchange: {DLX}",
        "    + dead-letter-strategy: at-least-once",
        "    ~ overflow: drop-head -> reject-publish",
    ]
    assert undo_text(UndoPlan("shop", plan.policy, True, base)).splitlines() == [
        "shop:",
        "  - policy rmq_delay.shop: pattern ^shop$",
        f"    - dead-letter-exchange: {DLX}",
        "    - dead-letter-strategy: at-least-once",
        "    ~ overflow: reject-publish -> drop-head",
        "    then the policy all applies",
    ]


@given(st.dictionaries(st.sampled_from("abc"), st.integers()), st.dictionaries(st.sampled_from("abc"), st.integers()))
def test_differences_are_those_keys_whose_values_differ(before, after):
    found = differences(before, after)
    assert {key for key in {*before, *after} if before.get(key) != after.get(key)} == set(found)


@corpus(
    "argument, policy, version, limit",
    [
        (None, None, (4, 0, 0), None),
        (5, None, (4, 0, 0), 5),
        (5, 3, (3, 10, 0), 3),
        (-1, 3, (4, 0, 0), 3),
        (-1, None, (4, 0, 0), -1),
        (-1, 3, (3, 10, 0), -1),
    ],
)
def test_the_delivery_limit_combines_argument_and_policy_as_the_broker_does(argument, policy, version, limit):
    assert effective_limit(argument, policy, version) == limit


def test_a_record_of_another_version_is_read():
    adoption = Adoption(True, 3, "quorum", 30, "p", "^q$", 2, {"a": 1}, "base", {"b": 2})
    applied = Applied(adoption=adoption)
    assert Applied.from_json(applied.to_json()) == applied
    older = {key: value for key, value in applied.to_json().items() if key != "adoption"}
    assert Applied.from_json(older).adoption is None
    assert Adoption.from_json({**adoption.to_json(), "of a later version": 1}) == adoption
    assert Adoption.from_json({"in_force": True}) is None
