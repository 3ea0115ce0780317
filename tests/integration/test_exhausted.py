"""Exhausted messages: listed, requeued unchanged, discarded."""

import json
import sys

import amqp
import pytest

from celery_rmq_delay import before_requeue, requeue_failed
from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.apply import ensure_queue, ready_counts
from celery_rmq_delay.exceptions import SelectionError, TopologyError
from celery_rmq_delay.operations.exhausted import Selection, discard, list_exhausted, requeue, show_exhausted
from celery_rmq_delay.settings.parser import parse_settings
from tests.support.brokers.kinds import BOTH_TYPES
from tests.support.brokers.lab_app import opened, park
from tests.support.receiving import receiving
from tests.support.waiting import wait_for

ALL = Selection(everything=True)


def settings_of(lab):
    return parse_settings({"prefix": lab.names.prefix})


def exhausted_headers(task_id, **more):
    """Return headers as a worker writes them."""
    return {
        "id": task_id,
        "task": "shop.charge",
        "retries": 2,
        h.RETRIES: 0,
        h.EXCEPTION: "shop.errors.CardRefused",
        h.MESSAGE: "no money",
        h.REASON: "gave_up",
        h.ATTEMPTS: 3,
        h.EXHAUSTED_AT: "2026-11-20T18:00:00.000+00:00",
        h.EXCHANGE: "",
        h.ROUTING_KEY: "somewhere",
        **more,
    }


def bury(lab, *task_ids, queue=None, body="body", **more):
    """Put messages into the exhausted queue and return its name."""
    name = settings_of(lab).exhausted_queue
    ensure_queue(lab.connection, lab.plan(parse_settings({}).default.ladder).exhausted_queue())
    for task_id in task_ids:
        found = exhausted_headers(task_id, **({h.QUEUE: queue} if queue else {}), **more)
        lab.publish(name, body, headers=found)
    return name


def ids(lab, queue):
    """Return the task ids in a queue, in order, and empty it."""
    found = []
    while message := lab.channel.basic_get(queue, no_ack=True):
        found.append(message.headers["id"])
    return found


@BOTH_TYPES
@pytest.mark.brokers
def test_a_message_that_advanced_through_its_ladder_comes_back_byte_for_byte(lab):
    _, plan = opened(lab, tiers=["50ms", "60ms"])
    body = b"\x80\x04\xff\x00 not text"
    message = amqp.Message(
        body,
        delivery_mode=2,
        priority=3,
        content_type="application/x-python-serialize",
        content_encoding="binary",
        correlation_id="a",
        reply_to="answers",
        application_headers={"id": "a", "task": "shop.charge", "retries": 4, "tenant": "x", "nested": {"deep": [1]}},
    )
    lab.channel.basic_publish(message, exchange="", routing_key=plan.queue)
    for _ in range(3):
        lab.reject(lab.get(plan.queue))
    wait_for(lambda: ready_counts(lab.connection, [plan.exhausted])[plan.exhausted], "the exhausted message")

    (found,) = list_exhausted(lab.connection, settings_of(lab)).done
    assert (found.task_id, found.queue, found.attempts, found.size) == ("a", plan.queue, 7, len(body))
    assert found.exhausted_at is not None

    outcome = requeue(lab.connection, settings_of(lab), ALL)
    assert [each.task_id for each in outcome.done] == ["a"]
    lab.channel.auto_decode = False
    back = lab.get(plan.queue)
    assert back.body == body
    assert "x-death" not in back.headers
    assert h.without_dead_letters(back.headers) == {**message.headers, h.GENERATION: 1}
    wanted = {key: value for key, value in message.properties.items() if key != "application_headers"}
    assert {key: value for key, value in back.properties.items() if key != "application_headers"} == wanted
    assert ready_counts(lab.connection, [plan.exhausted])[plan.exhausted] == 0


@BOTH_TYPES
@pytest.mark.brokers
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_message_that_is_due_after_its_queue_was_deleted_is_exhausted(lab, is_copy):
    def opened_and_deleted(tier):
        """Delete a queue whose message is parked; return nothing if it was due by then and was deleted as well."""
        _, plan = opened(lab, tiers=[f"{tier}s", "1h"])
        delay_queue = plan.delay_queue(1, 1000 * tier).name
        lab.publish(delay_queue if is_copy else plan.queue, headers={"id": "a", "task": "t"})
        if not is_copy:
            lab.reject(lab.get(plan.queue))
        wait_for(
            lambda: any(ready_counts(lab.connection, [delay_queue, plan.queue]).values()), "the message, parked or back"
        )
        return plan if lab.channel.queue_delete(plan.queue) == 0 else None

    # The longer tiers are for a machine that is slow to delete a queue.
    plan = next(plan for tier in (2, 10, 64) if (plan := opened_and_deleted(tier)))

    wait_for(lambda: ready_counts(lab.connection, [plan.exhausted])[plan.exhausted], "the exhausted message")
    (found,) = list_exhausted(lab.connection, settings_of(lab)).done
    assert (found.task_id, found.queue, found.reason) == ("a", plan.queue, "undeliverable")


@BOTH_TYPES
@pytest.mark.brokers
@pytest.mark.parametrize("tiers", [{"tiers": ["1h"]}, {"tiers": ["1h"], "jitter": 0.2}], ids=["plain", "jitter"])
def test_a_message_that_is_rejected_after_its_delay_queue_was_deleted_is_exhausted(lab, tiers):
    _, plan = opened(lab, **tiers)
    for _, _, delay_queue in plan.delay_queues(plan.ladders.values()):
        lab.channel.queue_delete(delay_queue.name)
    lab.publish(plan.queue, headers={"id": "a", "task": "t"})
    lab.reject(lab.get(plan.queue))

    wait_for(lambda: ready_counts(lab.connection, [plan.exhausted])[plan.exhausted], "the exhausted message")
    (found,) = list_exhausted(lab.connection, settings_of(lab)).done
    assert (found.task_id, found.queue, found.reason, found.attempts) == ("a", plan.queue, "undeliverable", 1)


@BOTH_TYPES
@pytest.mark.brokers
def test_a_message_whose_next_delay_queue_was_deleted_waits_in_the_first(lab):
    _, plan = opened(lab, tiers=["100ms", "1h"])
    lab.channel.queue_delete(plan.delay_queue(2, 3_600_000).name)
    lab.publish(plan.queue, headers={"id": "a", "task": "t"})
    for _ in range(3):
        lab.reject(lab.get(plan.queue))
    assert lab.get(plan.queue).headers["id"] == "a"


@pytest.mark.brokers
def test_text_in_another_encoding_keeps_its_bytes(classic_lab):
    lab = classic_lab
    target, name = lab.queue(), bury(lab)
    body = "grüße".encode("utf-16")
    headers = exhausted_headers("a", **{h.QUEUE: target})
    message = amqp.Message(body, content_type="text/plain", content_encoding="utf-16", application_headers=headers)
    lab.channel.basic_publish(message, exchange="", routing_key=name)
    wait_for(lambda: requeue(lab.connection, settings_of(lab), ALL).done, "the requeue")
    lab.channel.auto_decode = False
    assert lab.get(target).body == body


@BOTH_TYPES
@pytest.mark.brokers
def test_a_requeued_task_starts_its_ladder_again(lab):
    _, plan = opened(lab)
    name = bury(lab, "a", queue=plan.queue, **{h.CRASHES: 2, h.LANE: 3})
    requeue(lab.connection, settings_of(lab), ALL)
    back = lab.get(plan.queue)
    kept = {"id": "a", "task": "shop.charge", "retries": 0, h.LANE: 3}
    assert h.without_dead_letters(back.headers) == {**kept, h.GENERATION: 1}
    lab.reject(back)
    delay_queue = plan.delay_queue(1, 3_600_000).name
    wait_for(lambda: ready_counts(lab.connection, [delay_queue])[delay_queue] == 1, "the first tier")
    assert ready_counts(lab.connection, [name])[name] == 0


@BOTH_TYPES
def test_a_list_shows_the_headers_of_the_worker_and_leaves_the_order(lab):
    name = bury(lab, "a", "b", "c", queue="q", body="1234567")
    outcome = list_exhausted(lab.connection, settings_of(lab), limit=2)
    assert [each.task_id for each in outcome.done] == ["a", "b"]
    assert not outcome.complete
    assert outcome.done[0].to_json() == {
        "task_id": "a",
        "task": "shop.charge",
        "queue": "q",
        "reason": "gave_up",
        "exception": "shop.errors.CardRefused",
        "message": "no money",
        "attempts": 3,
        "exhausted_at": "2026-11-20T18:00:00.000+00:00",
        "size": 7,
    }
    assert ids(lab, name) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(task_ids=frozenset({"wanted"})),
        Selection(task="shop.refund"),
        Selection(queue="other"),
        Selection(exception="shop.errors.Lost"),
        Selection(exception="Lost"),
        Selection(reason="crashed"),
        Selection(task="shop.refund", reason="crashed"),
    ],
    ids=lambda selection: "-".join(key for key, value in vars(selection).items() if value),
)
def test_only_messages_that_match_every_condition_are_requeued(classic_lab, selection):
    lab, target = classic_lab, classic_lab.queue()
    name = bury(lab, "a", "b", queue="q")
    odd = {"task": "shop.refund", h.EXCEPTION: "shop.errors.Lost", h.REASON: "crashed"}
    bury(lab, "wanted", queue="other", **odd)
    bury(lab, "c", queue="q")
    outcome = requeue(lab.connection, settings_of(lab), selection, to=target)
    assert [each.task_id for each in outcome.done] == ["wanted"]
    assert (ids(lab, target), ids(lab, name)) == (["wanted"], ["a", "b", "c"])


@BOTH_TYPES
def test_a_selection_is_required_and_what_it_leaves_or_misses_is_reported(lab):
    target, settings = lab.queue(), settings_of(lab)
    name = bury(lab, *"abcde", queue=target)
    for act in (requeue, discard):
        with pytest.raises(SelectionError, match="No messages selected"):
            act(lab.connection, settings, Selection())
    outcome = list_exhausted(lab.connection, settings, Selection(task_ids=frozenset({"c"})), scan_limit=2)
    assert (outcome.done, outcome.seen, outcome.complete) == ([], 2, False)
    discard(lab.connection, settings, Selection(task_ids=frozenset({"b"})))
    outcome = requeue(lab.connection, settings, Selection(task_ids=frozenset({"a", "b"})))
    assert outcome.not_found == ["b"]
    requeue(lab.connection, settings, ALL, limit=2)
    assert (ids(lab, target), ids(lab, name)) == (["a", "c", "d"], ["e"])


@BOTH_TYPES
@pytest.mark.brokers
def test_messages_exhausted_again_during_a_requeue_are_not_requeued_again(lab):
    name = settings_of(lab).exhausted_queue
    bury(lab, "a", "b", queue=name)  # requeued, they are exhausted at once
    outcome = requeue(lab.connection, settings_of(lab), ALL)
    assert ([each.task_id for each in outcome.done], outcome.complete) == (["a", "b"], True)
    assert ids(lab, name) == ["a", "b"]


@BOTH_TYPES
@pytest.mark.brokers
def test_a_message_for_a_deleted_queue_stays_and_the_others_are_requeued(lab):
    target = lab.queue()
    bury(lab, "lost", queue=f"{lab.names.prefix}-gone")
    name = bury(lab, "a", queue=target)
    outcome = requeue(lab.connection, settings_of(lab), ALL)
    assert [each.task_id for each in outcome.done] == ["a"]
    (failure,) = outcome.failed
    assert failure.found.task_id == "lost"
    assert "No queue takes messages" in failure.problem
    assert (ids(lab, target), ids(lab, name)) == (["a"], ["lost"])


@BOTH_TYPES
@pytest.mark.brokers
def test_a_message_that_its_full_queue_refuses_stays(lab):
    target = lab.queue(**{"x-max-length": 1, "x-overflow": "reject-publish"})
    name = bury(lab, *"abcdef", queue=target)
    outcome = requeue(lab.connection, settings_of(lab), ALL)
    assert outcome.failed
    assert all("refused" in failure.problem for failure in outcome.failed)
    assert ids(lab, target) + ids(lab, name) == list("abcdef")


def test_a_full_queue_that_sends_refused_messages_to_the_exhausted_queue_is_tried_once(classic_lab):
    exhausted = settings_of(classic_lab).exhausted_queue
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": exhausted}
    target = classic_lab.queue(**{"x-max-length": 0, "x-overflow": "reject-publish-dlx"}, **back)
    name = bury(classic_lab, *"abcdef", queue=target)
    outcome = requeue(classic_lab.connection, settings_of(classic_lab), ALL, dead_letters_refused=lambda _: True)
    assert [failure.found.task_id for failure in outcome.failed] == list("abcdef")
    assert all("exhausted queue" in failure.problem for failure in outcome.failed[1:])
    assert sorted(ids(classic_lab, name)) == list("aabcdef"), "none is lost, and one is twice in it"


def test_a_receiver_that_objects_or_raises_keeps_a_message_and_a_failed_requeue_is_reported(lab):
    failed: list[tuple[str, str]] = []

    def before(sender, task_id, queue, arguments, **_):
        if task_id == "raises":
            arguments()
        if task_id == "leaves":
            sys.exit(3)
        return f"{sender} may not go to {queue}" if task_id == "objects" else None

    def after(task_id, queue, **_):
        failed.append((task_id, queue))

    target = lab.queue()
    name = bury(lab, "a", "objects", "raises", "leaves", queue=target)
    bury(lab, "lost", queue="gone")
    with receiving(before_requeue, before), receiving(requeue_failed, after):
        outcome = requeue(lab.connection, settings_of(lab), ALL)
    assert [each.task_id for each in outcome.done] == ["a"]
    problems = {failure.found.task_id: failure.problem for failure in outcome.failed}
    assert problems["objects"] == f"shop.charge may not go to {target}"
    assert "before raised UndecodableError: no content type" in problems["raises"]
    assert problems["leaves"] == "a receiver of before_requeue raised SystemExit: 3"
    assert failed == [("lost", "gone")]
    assert ids(lab, name) == ["objects", "raises", "leaves", "lost"]


@BOTH_TYPES
def test_a_message_of_unknown_origin_stays_until_a_queue_is_named(lab):
    target = lab.queue()
    name = bury(lab, "a")
    (failure,) = requeue(lab.connection, settings_of(lab), ALL).failed
    assert "--to" in failure.problem
    wait_for(lambda: ready_counts(lab.connection, [name])[name] == 1, "the return of the message")
    requeue(lab.connection, settings_of(lab), ALL, to=target)
    assert ids(lab, target) == ["a"]


def test_a_missing_exhausted_queue_is_named_with_the_fix(classic_lab):
    with pytest.raises(TopologyError, match="rmq-delay apply"):
        list_exhausted(classic_lab.connection, settings_of(classic_lab))


@BOTH_TYPES
@pytest.mark.brokers
def test_a_death_that_is_no_rejection_is_listed_with_its_reason_and_queue(lab):
    if not lab.reports_death_reason:
        pytest.skip("before RabbitMQ 3.13 every death advances through the ladder")
    _, plan = opened(lab)
    lab.publish(plan.queue, headers={"id": "a", "task": "shop.charge"}, expiration="1")
    wait_for(lambda: ready_counts(lab.connection, [plan.exhausted])[plan.exhausted], "the expired message")
    (found,) = list_exhausted(lab.connection, settings_of(lab)).done
    assert (found.reason, found.queue, found.task_id) == ("expired", plan.queue, "a")


def test_messages_without_any_header_are_listed_and_kept(classic_lab):
    name = bury(classic_lab, "a", **{h.MESSAGE: "password=hunter2"})
    classic_lab.publish(name, "not a task")
    secret, found = list_exhausted(classic_lab.connection, settings_of(classic_lab)).done
    assert secret.message == "password=[redacted]"
    assert (found.task_id, found.task, found.queue, found.attempts, found.size) == (None, None, None, 0, 10)


@BOTH_TYPES
def test_a_parked_task_is_not_among_the_exhausted(lab):
    _, plan = opened(lab)
    park(lab, plan, "a")
    assert list_exhausted(lab.connection, settings_of(lab)).done == []


@BOTH_TYPES
@pytest.mark.brokers
def test_a_message_with_cc_and_no_body_goes_back_to_its_origin_queue_only(lab):
    origin, other = lab.queue(), lab.queue()
    name = bury(lab)
    headers = exhausted_headers("1", **{h.QUEUE: origin, "CC": [other]})
    lab.publish(name, "", headers=headers, user_id=lab.connection.userid)
    lab.get(other, ack=True)

    assert len(requeue(lab.connection, settings_of(lab), ALL).done) == 1

    message = lab.get(origin, ack=True)
    assert (message.body or "", "CC" in message.headers, "user_id" in message.properties) == ("", False, False)
    assert ready_counts(lab.connection, [other]) == {other: 0}


@BOTH_TYPES
def test_a_message_whose_expires_is_past_stays_and_is_reported(lab):
    _, plan = opened(lab)
    name = bury(lab, "a", queue=plan.queue, expires="2026-01-31T12:00:00+00:00")
    outcome = wait_for(lambda: (found := requeue(lab.connection, settings_of(lab), ALL)).seen and found, "the message")
    assert [failure.problem[:20] for failure in outcome.failed] == ["Its expires is past:"]
    assert ready_counts(lab.connection, [name, plan.queue]) == {name: 1, plan.queue: 0}


def test_a_shown_message_has_its_facts_headers_traceback_and_arguments_without_secrets(classic_lab):
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 1, in charge\n    pay(password="hunter2")\n'
    more = {h.TRACEBACK: traceback, "authorization": "Bearer hunter2", "tenant": "x", h.MESSAGE: "password=hunter2"}
    body = '[[7, {"card_number": "4111"}], {"password": "hunter2", "amount": 3}, {}]'
    bury(classic_lab, "other")
    headers = {**exhausted_headers("a", **{h.QUEUE: "shop"}), **more}
    json_type = {"content_type": "application/json", "content_encoding": "utf-8"}
    message = amqp.Message(body, application_headers=headers, **json_type)
    classic_lab.channel.basic_publish(message, exchange="", routing_key=settings_of(classic_lab).exhausted_queue)

    (found,), outcome = show_exhausted(classic_lab.connection, settings_of(classic_lab), "a")

    shown = found.to_json()
    assert "hunter2" not in str(shown)
    assert (shown["task_id"], shown["queue"], shown["reason"], shown["attempts"]) == ("a", "shop", "gave_up", 3)
    assert json.loads(shown["args"]) == [7, {"card_number": "[redacted]"}]
    assert json.loads(shown["kwargs"]) == {"password": "[redacted]", "amount": 3}
    assert shown["headers"]["tenant"] == "x"
    assert "in charge" in shown["traceback"]
    assert outcome.complete
    assert len(list_exhausted(classic_lab.connection, settings_of(classic_lab)).done) == 2  # nothing was taken


def test_the_arguments_of_a_body_that_is_not_json_are_not_decoded(classic_lab):
    bury(classic_lab, "a", body="cos\nsystem\n(S'true'\ntR.")
    (found,), _ = show_exhausted(classic_lab.connection, settings_of(classic_lab), "a")
    assert found.to_json()["args"] is None
    assert found.to_json()["problem"].startswith("undecodable (")
