"""Select, confirm, run: the questions of the pages, the tasks that change, and the messages."""

import json
import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.db import connection, connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from celery_rmq_delay import RetryableTask, before_requeue
from celery_rmq_delay.contrib.django.models import Operation, TaskRecord, TaskState
from celery_rmq_delay.contrib.django.services import stats
from celery_rmq_delay.contrib.django.services.actors import Actor
from celery_rmq_delay.contrib.django.services.operations import actions
from celery_rmq_delay.contrib.django.services.operations import requests as operations
from celery_rmq_delay.contrib.django.services.operations.background import next_operation
from celery_rmq_delay.contrib.django.services.prune import prune
from celery_rmq_delay.exceptions import OperationBusyError
from tests.support.brokers.kinds import POSTGRES_TABLES
from tests.support.django import people, seed, shop
from tests.support.django.admin_pages import BASE, EXHAUSTED, ask, confirm, messages_of
from tests.support.django.desk import states
from tests.support.receiving import receiving

pytestmark = pytest.mark.usefixtures("tables", "shop")

PAST, FUTURE = "2026-01-31T12:00:00+00:00", "2126-01-31T12:00:00Z"


def stored():
    """Return an exhausted task with its message."""
    task = seed.record(1)
    seed.message(task, seed.call(1))
    return task


@POSTGRES_TABLES
def test_a_discard_is_asked_for_first_then_done_once_logged_and_shown(client):
    tasks = [seed.record(number) for number in range(5)]
    other = seed.record(9)
    page = ask(client, "discard", *tasks)
    assert "5 tasks" in page.content.decode()
    tables = {str(table["label"]): [count for _value, count in table["rows"]] for table in page.context["tables"]}
    assert tables["Task"] == [3, 1, 1]
    assert sum(tables["Error"]) == sum(tables["Queue"]) == 5
    assert states() == {"EXHAUSTED": 6}
    assert not Operation.objects.exists()
    answer = confirm(client, page, reason="The gateway is gone")
    assert messages_of(answer) == ["5 discarded"]
    assert answer["Location"] == EXHAUSTED
    assert states() == {"DISCARDED": 5, "EXHAUSTED": 1}
    operation = Operation.objects.get()
    assert (operation.actor, operation.user.username, operation.reason) == ("alice", "alice", "The gateway is gone")
    again = confirm(client, page)
    assert messages_of(again)[-1] == f"This was confirmed before, as operation {operation.pk}: 5 discarded"
    assert again["Location"] == f"{BASE}/operation/{operation.pk}/change/"
    assert Operation.objects.get() == operation
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.content_type.model) == (str(operation.pk), "operation")
    assert entry.change_message == f"Discard (operation {operation.pk}): The gateway is gone"
    for address, is_shown in (
        (f"{EXHAUSTED}{tasks[0].pk}", True),
        (f"{BASE}/taskrecord/{tasks[0].pk}", True),
        (f"{EXHAUSTED}{other.pk}", False),
    ):
        assert ("The gateway is gone" in client.get(f"{address}/history/").content.decode()) is is_shown


@POSTGRES_TABLES
def test_tasks_that_another_user_handled_meanwhile_are_skipped_and_shown(client):
    tasks = [seed.record(number) for number in range(4)]
    page = ask(client, "discard", *tasks)
    first = operations.freeze("discard", TaskRecord.objects.filter(pk=tasks[0].pk), actor=Actor(None, "carol"))
    operations.run(first)
    answer = confirm(client, page)
    assert messages_of(answer) == ["3 discarded, 1 skipped (already discarded by carol)"]


@pytest.mark.parametrize(("model", "other"), [("parkedtask", TaskState.EXHAUSTED), ("exhaustedtask", TaskState.PARKED)])
def test_the_actions_of_a_list_do_not_reach_tasks_of_another_list(model, other):
    task = seed.record(1, other)
    bob = people.staff(f"view_{model}", "discard_taskrecord")
    address = f"/admin/rmq_delay/{model}/"
    selected = {"action": "discard", "_selected_action": [str(task.pk)]}
    asked = bob.post(address, selected).content.decode()
    (draft,) = Operation.with_drafts.all()
    assert draft.requested == 0
    bob.post(address, {**selected, "confirm": "1", "reason": "", "draft": str(draft.pk)})
    assert task.exception_type not in asked
    assert states() == {other: 1}


def test_a_requeue_without_a_broker_fails_and_leaves_the_tasks_as_they_were(client):
    tasks = [seed.record(number) for number in range(2)]
    for task in tasks:
        seed.message(task, seed.call(1))
    answer = confirm(client, ask(client, "requeue", *tasks))
    (message,) = messages_of(answer)
    assert message.startswith("0 requeued, 2 not sent (broker unreachable: ")
    assert states() == {"EXHAUSTED": 2}


@POSTGRES_TABLES
def test_a_whole_list_is_frozen_by_its_filter_and_late_arrivals_are_not_swept_in(client):
    for number in range(8):
        seed.record(number)
    address = f"{EXHAUSTED}?queue=payments"
    page = ask(client, "discard", address=address, select_across="1")
    assert "4 tasks" in page.content.decode()
    assert page.content.decode().count('name="_selected_action"') == 1, "no list of ids"
    seed.record(100, changed_at=seed.now() + timedelta(seconds=1))
    answer = confirm(client, page)
    assert messages_of(answer) == ["4 discarded"]
    assert states() == {"DISCARDED": 4, "EXHAUSTED": 5}
    assert Operation.objects.get().details == {"filters": {"queue": "payments"}, "list": "exhaustedtask"}


@POSTGRES_TABLES
def test_an_action_on_a_whole_list_is_for_exactly_the_counted_tasks_whatever_the_clocks_show(client):
    late = [seed.record(number, TaskState.PARKED) for number in (8, 9)]
    counted = [seed.record(number) for number in range(2)]
    fast = seed.record(4, changed_at=seed.now() + timedelta(minutes=2))
    page = ask(client, "discard", select_across="1")
    assert "3 tasks" in page.content.decode()
    # Others take their places: their earlier change was stored later.
    hour_ago = seed.now() - timedelta(hours=1)
    TaskRecord.objects.filter(pk__in=[task.pk for task in late]).update(state="EXHAUSTED", changed_at=hour_ago)
    TaskRecord.objects.filter(pk__in=[task.pk for task in counted]).update(state=TaskState.DISCARDED)
    late.append(seed.record(12, changed_at=seed.now() - timedelta(minutes=2)))
    assert messages_of(confirm(client, page)) == ["1 discarded, 2 skipped (now discarded)"]
    assert {task.pk for task in TaskRecord.objects.filter(state=TaskState.EXHAUSTED)} == {task.pk for task in late}
    discarded = f"{EXHAUSTED}?state=DISCARDED"
    restored = confirm(client, ask(client, "restore", fast, address=discarded))
    assert (messages_of(restored)[-1], restored["Location"]) == ("1 restored", discarded)


@POSTGRES_TABLES
def test_an_action_on_a_search_for_a_frequent_word_is_for_exactly_the_counted_tasks(client):
    tasks = [seed.record(number, exception_message=f"alpha {number}") for number in range(24)]
    with override_settings(RMQ_DELAY={**settings.RMQ_DELAY, "COUNT_CAP": 16}):
        page = ask(client, "discard", address=f"{EXHAUSTED}?q=alpha", select_across="1")
        assert "4 tasks" in page.content.decode()
        gone = list(TaskRecord.objects.order_by("-exhausted_at").values_list("pk", flat=True)[:2])
        TaskRecord.objects.filter(pk__in=gone).update(state=TaskState.DISCARDED)
        assert messages_of(confirm(client, page)) == ["2 discarded, 2 skipped (now discarded)"]
    assert TaskRecord.objects.filter(state=TaskState.EXHAUSTED).count() == len(tasks) - 4


def test_tasks_in_other_states_are_counted_apart_and_left_alone(client):
    exhausted, parked = seed.record(1), seed.record(2, TaskState.PARKED)
    seed.message(exhausted, seed.call(1))
    page = ask(client, "requeue_gradually", exhausted, parked, address=f"{BASE}/taskrecord/")
    assert "<strong>1 task</strong>" in page.content.decode()
    assert "1 other selected task is in another state" in page.content.decode()
    answer = confirm(client, page)
    operation = Operation.objects.get()
    assert (operation.requested, operation.canary, operation.rate) == (1, 5, 60)
    assert answer["Location"] == f"{BASE}/operation/{operation.pk}/change/"
    page = ask(client, "run_now", exhausted, address=f"{BASE}/taskrecord/").content.decode()
    assert "None of the selected tasks" in page
    assert 'name="confirm"' not in page


def test_a_wrong_number_is_asked_for_again(client):
    page = ask(client, "requeue_gradually", stored())
    for canary, rate in (("-1", "60"), ("5", "0"), ("x", "60"), ("5", "")):
        again = confirm(client, page, canary=canary, rate=rate, reason="because").content.decode()
        assert "errorlist" in again, (canary, rate)
        assert ">\nbecause</textarea>" in again
        assert not Operation.objects.exists()


def test_ids_that_no_page_can_send_are_refused(client):
    page = ask(client, "discard", seed.record(1))
    for number in ("", "x", "-1", "1 OR 1=1", "9" * 40):
        assert confirm(client, page, draft=number).status_code == 400, number
        assert client.post(EXHAUSTED, {"action": "discard", "_selected_action": number}).status_code == 400, number
    assert not Operation.objects.exists()


@POSTGRES_TABLES
def test_a_draft_is_confirmed_by_its_own_user_action_and_list_only_and_with_permission(client):
    page = ask(client, "discard", seed.record(1))
    assert confirm(client, page, action="restore").status_code == 400
    everywhere = {"action": "discard", "_selected_action": "0", "draft": str(page.context["draft"].pk)}
    assert client.post(f"{BASE}/taskrecord/", everywhere).status_code == 400
    bob = people.staff("view_exhaustedtask", "view_operation", "discard_taskrecord")
    assert confirm(bob, page).status_code == 403
    own = ask(bob, "discard", seed.record(2))
    own.context["user"].user_permissions.clear()
    assert confirm(bob, own).status_code == 403
    assert states() == {"EXHAUSTED": 2}
    assert messages_of(confirm(client, page)) == ["1 discarded"]


def test_a_page_that_is_a_day_old_starts_nothing(client):
    page = ask(client, "discard", seed.record(1))
    draft = page.context["draft"]
    Operation.with_drafts.filter(pk=draft.pk).update(created_at=timezone.now() - timedelta(days=1))
    answer = confirm(client, page)
    prune()
    assert not Operation.with_drafts.exists()
    assert answer["Location"] == EXHAUSTED
    assert "a day old" in messages_of(answer)[0]
    assert "a day old" in messages_of(confirm(client, page))[-1]
    assert states() == {"EXHAUSTED": 1}


def test_a_draft_is_shown_nowhere(client):
    task = seed.record(1)
    draft = ask(client, "discard", task).context["draft"]
    assert client.get(f"{BASE}/operation/?state=DRAFT").status_code == 400
    assert client.get(f"{BASE}/operation/?kind=all").context["cl"].result_count == 0
    assert "DRAFT" not in client.get(f"{BASE}/operation/").content.decode()
    assert client.get(f"{BASE}/operation/{draft.pk}/change/").status_code == 404
    assert client.post(f"{BASE}/operation/{draft.pk}/cancel/").status_code == 404
    assert client.get(f"{BASE}/taskrecord/?operation={draft.pk}").status_code == 400
    assert "Discard" not in client.get(f"{EXHAUSTED}{task.pk}/history/").content.decode()
    assert stats.operations() == []
    assert next_operation() is None
    with pytest.raises(OperationBusyError):
        operations.run(draft)
    assert states() == {"EXHAUSTED": 1}


@POSTGRES_TABLES
def test_a_draft_of_many_tasks_takes_few_queries(client):
    seed.shop(parked=0, exhausted=400)
    counts = []
    for address in (f"{EXHAUSTED}?queue=payments", EXHAUSTED):
        with CaptureQueriesContext(connection) as queries:
            page = ask(client, "requeue_gradually", address=address, select_across="1")
        counts.append(len(queries))
    assert page.context["draft"].requested == 400
    assert counts[0] == counts[1]
    assert sum('INSERT INTO "rmq_delay_operationitem"' in query["sql"] for query in queries) == 1


def test_a_large_selection_is_left_to_the_background_with_a_page_to_watch(client):
    for number in range(21):
        seed.record(number)
    page = ask(client, "discard", select_across="1")
    assert "runs this in the background" in page.content.decode()
    answer = confirm(client, page)
    operation = Operation.objects.get()
    assert answer["Location"] == f"{BASE}/operation/{operation.pk}/change/"
    assert messages_of(answer) == [f"Operation {operation.pk}: “manage.py rmq_delay_operate” will process 21 tasks."]
    watched = client.get(answer["Location"]).content.decode()
    assert "data-automatic" in watched
    assert "0 discarded, 21 to go" in watched
    assert LogEntry.objects.count() == 1, "one for the operation, not one for each task"
    operations.run(operation)
    over = client.get(answer["Location"]).content.decode()
    assert "21 discarded" in over
    assert "data-automatic" not in over
    assert 'max="21"' in over


def test_a_background_operation_can_be_scheduled_for_later(client):
    task = stored()
    assert 'name="not_before"' not in ask(client, "requeue", task).content.decode()
    page = ask(client, "requeue_gradually", task)
    assert 'type="datetime-local" name="not_before"' in page.content.decode()
    day = (seed.now() + timedelta(days=200)).date()
    for refused in ("tomorrow", "9999-12-31T23:59", "0001-01-01T00:00", "2026-01-31T03:00"):
        assert "errorlist" in confirm(client, page, not_before=refused).content.decode()
        assert not Operation.objects.exists()
    confirm(client, page, not_before=f"{day}T03:00")
    operation = Operation.objects.get()
    assert operation.not_before is not None
    assert operation.not_before.isoformat() == f"{day}T03:00:00+00:00"


def test_a_running_operation_can_be_cancelled_by_users_who_may_start_one(client):
    operation = operations.freeze(
        "requeue", TaskRecord.objects.filter(pk=seed.record(1).pk), actor=Actor(None, "carol")
    )
    address = f"{BASE}/operation/{operation.pk}/"
    other = people.staff("view_operation", "discard_taskrecord")
    assert "Cancel</button>" not in other.get(f"{address}change/").content.decode()
    assert other.post(f"{address}cancel/").status_code == 403
    assert "Cancel</button>" in client.get(f"{address}change/").content.decode()
    assert client.post(f"{address}cancel/").status_code == 302
    operation.refresh_from_db()
    assert (operation.state, operation.details["cancelled_by"]) == ("CANCELLED", "alice")
    assert messages_of(client.post(f"{address}cancel/"))[-1] == "The operation has already ended."
    assert "0 requeued, 1 cancelled" in client.get(f"{address}change/").content.decode()


def test_the_page_of_an_operation_lists_failures_first(client):
    tasks = [seed.record(number) for number in range(4)]
    operation = operations.freeze("requeue", TaskRecord.objects.all(), actor=Actor(None, "carol"))
    details = {"OK": "", "SKIPPED": "deleted", "FAILED": "no route", "UNKNOWN": "no confirm"}
    for position, (outcome, detail) in enumerate(details.items()):
        operation.items.filter(position=position).update(outcome=outcome, detail=detail)
    page = client.get(f"{BASE}/operation/{operation.pk}/change/").content.decode()
    assert page.index("no confirm") < page.index("no route") < page.index("deleted")
    assert page.count(f"{EXHAUSTED}{tasks[0].pk}/change/") == 1


def test_the_page_of_a_task_offers_the_actions_of_its_state(client):
    def offered(task):
        page = client.get(f"{BASE}/taskrecord/{task.pk}/change/").content.decode()
        return set(re.findall(r'name="action" value="(\w+)"', page))

    assert offered(seed.record(1, TaskState.PARKED)) == {"run_now", "discard"}
    assert offered(seed.record(2)) == {"requeue", "discard"}
    assert offered(seed.record(3, TaskState.UNKNOWN)) == {"discard", "restore"}
    assert offered(seed.record(4, TaskState.DISCARDED)) == {"restore"}
    assert offered(seed.record(5, TaskState.RECOVERED)) == set()


@POSTGRES_TABLES
def test_a_task_without_its_message_cannot_be_requeued(client):
    tasks = [seed.record(number) for number in range(3)]
    address = f"{EXHAUSTED}{tasks[0].pk}/change/"
    disabled = 'name="action" value="requeue" disabled'
    assert disabled in client.get(address).content.decode()
    assert "its message is not in the database" in client.get(address).content.decode()
    page = ask(client, "requeue", *tasks).content.decode()
    assert "None of the selected tasks has a message" in page
    assert 'name="confirm"' not in page
    seed.message(tasks[0], seed.call(1))
    assert disabled not in client.get(address).content.decode()
    page = ask(client, "requeue", *tasks).content.decode()
    assert "2 of these tasks have no message in the database and are skipped." in page
    assert 'name="confirm"' in page
    assert "no message" not in ask(client, "discard", *tasks).content.decode()


@POSTGRES_TABLES
def test_a_requeue_shows_how_many_tasks_have_expired(client, monkeypatch):
    tasks = [seed.record(number) for number in range(5)]
    for task, expires in zip(tasks, (PAST, PAST, FUTURE, None, PAST), strict=True):
        seed.message(task, seed.call(1), {"expires": expires})
    page = ask(client, "requeue", select_across="1").content.decode()
    assert "3 of these tasks have expired and are skipped, unless you requeue without expiry." in page
    assert 'name="without_expiry"' in page
    monkeypatch.setattr(actions, "CHECKED", 2)
    with CaptureQueriesContext(connection) as queries:
        page = ask(client, "requeue", select_across="1").content.decode()
    assert re.search(r"At least \d of these tasks ha(s|ve) expired .* The first 2 were checked\.", page)
    assert sum("rmq_delay_payload" in query["sql"] for query in queries) == 1


def test_a_requeue_warns_of_tasks_whose_own_apply_async_it_does_not_call(client, request):
    class Locking(RetryableTask):
        abstract = True

        def apply_async(self, *args, **options):
            return super().apply_async(*args, **options)

    def nothing(**_):
        pass

    task = stored()
    request.getfixturevalue("shop").task(name=task.name, base=Locking, shared=False)(nothing)
    warning = f"does not call the <code>apply_async</code> of {task.name}"
    assert warning in ask(client, "requeue", task).content.decode()
    assert warning not in ask(client, "discard", task).content.decode()
    with receiving(before_requeue, nothing):
        assert warning not in ask(client, "requeue", task).content.decode()


def test_only_a_discard_looks_dangerous(client):
    task = stored()
    page = client.get(f"{EXHAUSTED}{task.pk}/change/").content.decode()
    for name in ("discard", "requeue"):
        (button,) = re.findall(f'<button type="submit" class="([^"]*)" name="action" value="{name}', page)
        (confirmed,) = re.findall(r'name="confirm" class="([^"]*)"', ask(client, name, task).content.decode())
        assert ["rmq-danger" in each for each in (button, confirmed)] == [name == "discard"] * 2


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_discard_of_parked_tasks_shows_what_a_crash_of_the_broker_can_bring_back(client, kind):
    tasks = [seed.record(number, TaskState.PARKED) for number in range(2)]
    with shop.of(shop.make("amqp://127.0.0.1:1//", rmq_delay={"queue_type": kind}), broker_timeout=0.5):
        page = ask(client, "discard", *tasks, address=f"{BASE}/parkedtask/").content.decode()
    assert ("2 tasks are parked in classic queues" in page) is (kind == "classic")


def test_another_queue_that_cannot_be_checked_is_asked_for_again(client):
    page = ask(client, "requeue", stored())
    problems = {"mail": "broker unreachable", "x" * 256: "at most 255 characters", "a\0b": "Null characters"}
    for queue, problem in problems.items():
        again = confirm(client, page, queue=queue)
        assert (again.status_code, problem in again.content.decode()) == (200, True), problem
        assert not Operation.objects.exists()


def test_an_act_from_the_page_of_a_task_comes_back_to_it_though_its_list_does_not_show_it(client):
    task = seed.record(1)
    for action, label, done in (("discard", "Discarded", "1 discarded"), ("restore", "Exhausted", "1 restored")):
        answer = confirm(client, ask(client, action, task, from_record="1"))
        assert (messages_of(answer)[-1], answer["Location"]) == (done, f"{EXHAUSTED}{task.pk}/change/")
        assert label in client.get(answer["Location"]).content.decode()


def test_a_parked_task_that_is_discarded_has_the_page_of_an_exhausted_one(client):
    task = seed.record(1, TaskState.PARKED)
    page = ask(client, "discard", task, address=f"{BASE}/parkedtask/", from_record="1")
    TaskRecord.objects.filter(pk=task.pk).update(state=TaskState.DISCARDED)  # by a colleague, as there is no broker
    answer = confirm(client, page)
    assert answer["Location"] == f"{EXHAUSTED}{task.pk}/change/"
    assert [act.name for act in client.get(answer["Location"]).context["acts"]] == ["restore"]


@POSTGRES_TABLES
def test_an_export_is_logged_and_redacted_for_users_who_may_not_see_secrets(client):
    task = seed.record(1, exception_message="password=hunter2")
    chosen = {"action": "export_jsonl", "_selected_action": str(task.pk)}
    answer = client.post(EXHAUSTED, chosen)
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Disposition"] == 'attachment; filename="exhaustedtask.jsonl"'
    found = json.loads(b"".join(answer.streaming_content))
    assert (found["task_id"], found["exception_message"]) == (task.task_id, "password=hunter2")
    bob = people.staff("view_exhaustedtask")
    assert b"hunter2" not in b"".join(bob.post(EXHAUSTED, chosen).streaming_content)
    first, second = Operation.objects.order_by("pk")
    assert (first.kind, first.actor, first.requested, first.details["redacted"]) == ("export", "alice", 1, False)
    assert (second.actor, second.details["redacted"]) == ("bob", True)


@POSTGRES_TABLES
def test_acts_commit_step_by_step_in_a_project_that_wraps_requests_in_transactions(client, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert messages_of(confirm(client, ask(client, "discard", seed.record(1)))) == ["1 discarded"]


def test_the_other_lists_take_few_queries(client):
    task = seed.record(1)
    for _ in range(5):
        operations.freeze("discard", TaskRecord.objects.filter(pk=task.pk), actor=Actor(None, "carol"))
    for name in ("operation", "collectorstatus", "unreadablemessage"):
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"{BASE}/{name}/").status_code == 200
        assert len(queries) <= 6, name
