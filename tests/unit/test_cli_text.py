"""Output of commands, without a broker."""

from dataclasses import replace
from datetime import datetime, timezone

from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.apply import Drift
from celery_rmq_delay.cli.text import (
    acted_text,
    exhausted_text,
    findings_text,
    plan_text,
    status_text,
    uninstalled_text,
)
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.operations.deletion import Deleted, Left
from celery_rmq_delay.operations.exhausted import ExhaustedMessage, Failure, Outcome
from celery_rmq_delay.operations.pending import Pending, ladder_change, ladder_text
from celery_rmq_delay.operations.results import Finding
from celery_rmq_delay.operations.status import QueueStatus, Status, TierStatus
from celery_rmq_delay.operations.uninstall.broker import Report
from celery_rmq_delay.tables import table

EXHAUSTED = ExhaustedMessage("a", "shop.charge", "payments", "gave_up", "ValueError", "no", 2, None, 10)


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_aligned_right():
    assert table(("NAME", "COUNT"), [("a", 1), ("longer", 100), (None, None)]).splitlines() == [
        "NAME    COUNT",
        "a           1",
        "longer    100",
        "-           -",
    ]
    assert table(("A", "B"), []) == "A  B"


@given(st.lists(st.tuples(st.text(), st.integers(), st.none() | st.text()), max_size=5))
def test_a_row_is_one_line_with_any_content(rows):
    assert len(table(("A", "B", "C"), rows).split("\n")) == len(rows) + 1


def test_a_ladder_reads_as_its_delays():
    assert ladder_text(Ladder((10_000, 5_400_000))) == "10s 1h30m"
    assert ladder_text(Ladder((10_000,), 0.2, 5, True)) == "10s ±20% and again"
    assert ladder_text(None) == "none"


def test_a_change_of_the_type_alone_can_be_seen_in_the_ladders():
    before, after = Ladder((10_000,)), Ladder((10_000,), queue_type="quorum")
    assert ladder_change(before, after) == ("10s (classic)", "10s (quorum)")
    assert ladder_change(before, Ladder((20_000,))) == ("10s", "20s")
    assert ladder_change(None, after) == ("none", "10s")


def test_a_plan_marks_created_replaced_and_conflicting_objects():
    found = Pending(
        "payments",
        create=(Drift("queue", "payments.retry.1.10s", "missing"),),
        replace=(Drift("queue", "payments.quarantine", "It is a classic queue."),),
        conflicts=(Drift("exchange", "rmq_delay.return", "inequivalent arg 'type'"),),
        ladder=(Ladder((1000,)), Ladder((10_000,))),
        tasks={"shop.ping": (None, Ladder((2000,)))},
        routing=True,
        unfinished=True,
    )
    assert plan_text([found, Pending("mails")]).splitlines() == [
        "payments:",
        "  + queue payments.retry.1.10s",
        "  ~ queue payments.quarantine: It is a classic queue.",
        "  ! exchange rmq_delay.return cannot be changed: inequivalent arg 'type'",
        "  ~ ladder: 1s -> 10s",
        "  ~ ladder of task shop.ping: the queue's -> 2s",
        "  ~ routing by death reason: as this version of RabbitMQ needs it",
        "  ~ finish an interrupted change of ladders",
        "mails: nothing to do",
    ]


def test_a_state_shows_due_times_bounds_and_remarks():
    due = datetime(2026, 11, 20, 18, 30, tzinfo=timezone.utc)
    tiers = (
        TierStatus(1, 10_000, 3, due, 10_000, retired=False),
        TierStatus(2, 60_000, 2, None, 60_000, retired=True),
        TierStatus(3, 600_000, 0, None, None, retired=False, missing=("payments.retry.3.10m",)),
    )
    status = Status((QueueStatus("payments", "classic", 1, None, tiers),), "rmq_delay.exhausted", None)
    assert status_text(status).splitlines() == [
        "QUEUE     READY  QUARANTINE  TIER  DELAY  PARKED  NEXT DUE",
        "payments  1      missing        1  10s         3  2026-11-20 18:30:00Z",
        "                                2  1m          2  within 1m             retired",
        "                                3  10m         0  -                     missing",
        "",
        "exhausted (rmq_delay.exhausted): does not exist yet",
    ]


def test_messages_held_by_a_native_queue_are_shown_as_the_management_api_reports_them():
    due = datetime(2026, 11, 20, 18, 30, tzinfo=timezone.utc)
    queues = (
        QueueStatus("mails", "quorum", 0, 0, (), "native"),
        QueueStatus("calls", "quorum", 0, 0, (), "native", held=2, held_due=due),
        QueueStatus("idle", "quorum", 0, 0, (), "native", held=0),
        QueueStatus("payments", "quorum", 0, 0, ()),
    )
    lines = status_text(Status(queues, "rmq_delay.exhausted", 0)).splitlines()
    assert [line for line in lines if "holds" in line] == [
        "mails holds its retries itself: only the management API reports how many",
        "calls holds its retries itself: 2 messages, the next due 2026-11-20 18:30:00Z",
        "idle holds its retries itself: 0 messages",
    ]


def test_a_long_message_is_cut_and_a_broken_one_stays_on_its_line():
    messages = [replace(EXHAUSTED, message=each) for each in ("x" * 500, "a\nb\tc")]
    text = exhausted_text(Outcome(messages, complete=True))
    assert [len(line) < 200 for line in text.splitlines()] == [True] * 3
    assert "a b c" in text
    assert exhausted_text(Outcome(seen=7)).endswith("Inspected only the first 7 messages; there may be more.")


def test_each_message_is_listed_with_its_outcome():
    outcome = Outcome([EXHAUSTED], [Failure(replace(EXHAUSTED, task_id="b"), "full")], ["c"], complete=True)
    assert acted_text(outcome, "requeued").splitlines() == [
        "requeued a (shop.charge)",
        "not requeued: b (shop.charge): full",
        "not found: c",
    ]


def test_a_finding_is_printed_above_its_fix():
    found = Finding("missing", "error", "payments", "Gone.", "Apply.")
    assert findings_text([found]) == "error: payments: Gone.\n    -> Apply."
    assert findings_text([]) == "No problems found."


def test_an_uninstall_shows_counts_and_the_first_names_of_what_is_left_unless_it_is_verbose():
    names = [f"q{number}" for number in range(100)]
    report = Report(verified=True)
    report.deleted += [Deleted("queue", name) for name in names]
    report.deleted += [Deleted("exchange", "rmq_delay.return"), Deleted("policy", "q1")]
    for name in names:
        report.left.append(Left("queue", f"{name}.retry", "It is not empty.", "Wait."))
    report.left.append(Left("exchange", "shop", "It is bound.", "Unbind it."))
    short = uninstalled_text(report, verbose=False)
    assert short.splitlines() == [
        "deleted 100 queues, 1 exchange, 1 policy (--verbose lists them)",
        "left: queue q0.retry, queue q1.retry, queue q2.retry and 97 more: It is not empty.",
        "    -> Wait.",
        "left: exchange shop: It is bound.",
        "    -> Unbind it.",
    ]
    whole = uninstalled_text(report, verbose=True)
    assert all(f"{name}, " in whole for name in names[:-1])
    assert all(f"queue {name}.retry" in whole for name in names)
    assert "deleted 1 policy: q1" in whole
