"""Decisions of the commands without a broker: selected messages, and problems of versions and limits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.amqp.objects import Binding
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import SelectionError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.management.records import Bindings
from celery_rmq_delay.names import Names
from celery_rmq_delay.operations.doctor import shared_prefix_findings
from celery_rmq_delay.operations.exhausted import ExhaustedMessage, Selection
from celery_rmq_delay.operations.findings import limit_findings, overflow_findings, version_findings
from celery_rmq_delay.topology.ladder import LadderPlan
from tests.support.apps import app_of
from tests.support.corpus import corpus

EXHAUSTED = ExhaustedMessage("a", "shop.charge", "payments", "gave_up", "ValueError", "no", 2, None, 10)


def plan(queue_type="quorum", tiers=3, own=0):
    ladder = Ladder(tuple(range(1, tiers + 1)))
    tasks = {"shop.ping": Ladder(tuple(range(1, own + 1)))} if own else {}
    return LadderPlan(Names("rmq_delay"), "payments", queue_type, "rmq_delay.exhausted", ladder, tasks)


@corpus(
    "version, severities",
    [((3, 9, 0), ["warning"]), ((0, 0, 0), ["warning"]), ((3, 10, 8), ["note"]), ((3, 13, 0), []), ((4, 3, 6), [])],
)
def test_an_old_version_is_a_problem_and_an_older_way_of_routing_a_note(version, severities):
    assert [each.severity for each in version_findings(Capabilities(version))] == severities


@given(tiers=st.integers(1, 40), own=st.integers(0, 40), limit=st.integers(0, 60))
def test_a_limit_is_a_problem_when_the_longest_ladder_needs_more(tiers, own, limit):
    found = list(limit_findings(plan(tiers=tiers, own=own), Capabilities((4, 0, 5)), limit))
    assert bool(found) == (limit < max(tiers, own) + 2)


@corpus(
    "queue_type, version, limit, problem",
    [
        ("classic", (4, 0, 0), 1, False),
        ("quorum", (4, 0, 0), None, False),
        ("quorum", (4, 0, 0), -1, False),
        ("quorum", (3, 10, 8), -1, True),
        ("quorum", (3, 10, 8), 5, False),
    ],
)
def test_a_negative_limit_is_none_from_4_0_on_and_zero_before(queue_type, version, limit, problem):
    assert bool(list(limit_findings(plan(queue_type), Capabilities(version), limit))) == problem


@corpus(
    "queue_type, arguments, policy, severities",
    [
        ("classic", {}, {"max-length": 5, "overflow": "reject-publish"}, ["error"]),
        ("classic", {"x-max-length-bytes": 5}, {"overflow": "reject-publish-dlx"}, ["error"]),
        ("classic", {"x-max-length": 5}, {"overflow": "drop-head"}, []),
        ("classic", {"x-overflow": "reject-publish"}, {}, []),
        ("quorum", {"x-overflow": "reject-publish"}, {"max-length": 5}, ["warning"]),
        ("quorum", {"x-overflow": "reject-publish"}, {}, []),
    ],
)
def test_a_full_queue_that_refuses_loses_messages_or_lets_them_wait(queue_type, arguments, policy, severities):
    assert [each.severity for each in overflow_findings(plan(queue_type), arguments, policy)] == severities


def test_an_exhausted_queue_of_another_app_with_the_same_prefix_is_named():
    app = app_of({"tiers": ["1s"], "exhausted_queue": "dead.a"})
    net = "rmq_delay.undeliverable"
    bindings = Bindings({(net, each): [Binding(net, each)] for each in ("dead.a", "dead.b")})
    [found] = shared_prefix_findings(state_of(app), bindings)
    assert (found.code, found.severity) == ("shared-prefix", "warning")
    assert "dead.b" in found.found
    del bindings[net, "dead.b"]
    assert not list(shared_prefix_findings(state_of(app), bindings))


@corpus(
    "selection, wanted",
    [
        (Selection(everything=True), True),
        (Selection(), True),
        (Selection(exception="ValueError"), True),
        (Selection(exception="errors.ValueError"), False),
        (Selection(task="shop.charge", queue="payments", reason="gave_up", task_ids=frozenset({"a", "b"})), True),
        (Selection(task="shop.charge", queue="mails"), False),
        (Selection(task_ids=frozenset({"b"})), False),
    ],
)
def test_a_message_is_selected_when_it_matches_every_condition(selection, wanted):
    assert selection.wants(EXHAUSTED) is wanted


def test_an_exception_is_found_by_its_name_without_its_module():
    found = replace(EXHAUSTED, exception="shop.errors.Lost")
    assert Selection(exception="Lost").wants(found)
    assert Selection(exception="shop.errors.Lost").wants(found)
    assert not Selection(exception="errors.Lost").wants(found)
    assert not Selection(exception="Lost").wants(replace(EXHAUSTED, exception=None))


def test_a_selection_that_contradicts_itself_or_names_an_unknown_reason_is_refused():
    with pytest.raises(SelectionError, match="exclude each other"):
        Selection(everything=True, task="shop.charge")
    with pytest.raises(
        SelectionError, match=r"--reason: found 'nonsense'\. Write one of retries_used, gave_up, crashed,"
    ):
        Selection(reason="nonsense")
