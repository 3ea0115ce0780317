"""The tables of docs/reference/what-becomes-of-a-message.md, row by row, compared with the decisions."""

import itertools
import pickle
from collections.abc import Callable
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any, NamedTuple

from celery.exceptions import Retry
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.headers import CRASHES
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.retry.decision import Action, Attempt, End, Ending, Place, arrive, end, next_delay
from celery_rmq_delay.retry.delivery import Delivery, Parked, RetryPath, advances_by_itself
from celery_rmq_delay.topology.native_retry import NativeRetry
from tests.support.corpus import corpus

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "what-becomes-of-a-message.md"
ANY = ""
LADDER = Ladder((1000, 2000, 3000))
YES_NO = ("yes", "no")
FROM = ("origin queue", "quarantine queue")
V310, V40, V43 = Capabilities((3, 10, 8)), Capabilities((4, 0, 5)), Capabilities((4, 3, 6))

Row = tuple[str, ...]


class Table(NamedTuple):
    """A table of the page: its columns of facts with their values, and its rows, whose last cell is the decision."""

    values: tuple[tuple[str, ...], ...]
    rows: list[Row]

    def cells(self, row):
        """Yield all combinations of facts of a row."""
        yield from itertools.product(*(self.values[k] if row[k] == ANY else (row[k],) for k in range(len(self.values))))


def table(heading, *values):
    lines = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    rows = [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines if line.startswith("|")]
    return Table(values, rows[2:])


ENDS = {
    "success": End.SUCCEEDED,
    "ignored": End.IGNORED,
    "revoked": End.REVOKED,
    "expired": End.EXPIRED,
    "`self.retry()`, or `autoretry_for`": End.RETRIED,
    "`Retry`, raised by hand": End.RETRIED,
    "failure": End.FAILED,
    "lost process, or hard time limit": End.LOST,
    "too many killed workers": End.CRASHED,
    "`Reject(requeue=True)`": End.REQUEUED,
    "`Reject(requeue=False)`": End.REJECTED,
    "a warm shutdown before it began, or a cold one": End.NOT_STARTED,
    "a lost connection that cancels it": End.ABANDONED,
}
INTERRUPTED = table(
    "Whether an earlier delivery was interrupted",
    FROM,
    ("classic", "quorum"),
    ("before 4.0", "4.0 and later"),
    YES_NO,
    YES_NO,
)
ARRIVAL = table("When a message is delivered", YES_NO, FROM, YES_NO, YES_NO, YES_NO, YES_NO, YES_NO)
RETRY = table("How a retry gets to its delay queue", YES_NO, YES_NO, YES_NO, YES_NO, FROM, YES_NO, YES_NO, YES_NO)
ENDED = table("When an attempt has ended", tuple(ENDS), YES_NO, YES_NO)


@corpus("each", [INTERRUPTED, ARRIVAL, RETRY, ENDED])
def test_each_combination_is_in_exactly_one_row(each):
    found = [cell for row in each.rows for cell in each.cells(row)]
    assert sorted(found) == sorted(itertools.product(*each.values))


@corpus("row", INTERRUPTED.rows)
def test_a_delivery_is_interrupted_as_the_table_states(row):
    for source, kind, version, flagged, fits in INTERRUPTED.cells(row):
        died = {"x-death": [{"queue": "q", "reason": "rejected", "count": 2}]}
        counts = [(2, None), (2, 2)] if fits == "yes" else [(3, None), (3, 3), (3, 1), (2, 1), (2, 3)]
        brokers = (V310,) if version == "before 4.0" else (V40, V43)
        for broker, (delivered, acquired) in itertools.product(brokers, counts):
            headers = died | {"x-delivery-count": delivered} | ({"x-acquired-count": acquired} if acquired else {})
            place = Place("q", source == "quarantine queue", counts=kind == "quorum", broker=broker)
            found = arrive(headers, place, LADDER, known=0, routing_key="q@2", redelivered=flagged == "yes")
            assert found.redelivered is (row[-1] == "yes" or source == "quarantine queue")
            assert (found.action is Action.RUN) is (row[-1] == "no")


DELIVERED = {
    "runs": Action.RUN,
    "moves to the quarantine queue": Action.QUARANTINE,
    "is exhausted: `crashed`": Action.EXHAUSTED,
    "waits in a delay queue until its `eta`": Action.HOLD,
    "moves to the end of the queue that it came from": Action.RETURN,
}


@corpus("row", ARRIVAL.rows)
@corpus("max_crashes", [0, 1, 3])
def test_a_delivered_message_goes_where_the_table_states(row, max_crashes):
    for is_applied, source, interrupted, is_last, eta_ahead, is_stopping, is_full in ARRIVAL.cells(row):
        # The kill that quarantined a message does not count; the one found now is one more.
        known = max(1, max_crashes) - (1 if is_last == "yes" else 2)
        if known < 0:
            continue  # with a max_crashes of 0 or 1 the first kill in the quarantine queue is the last
        found = arrive(
            {CRASHES: known} if known else {},
            Place("q", source == "quarantine queue", is_applied == "yes", max_crashes=max_crashes),
            LADDER,
            known=0,
            routing_key="q",
            redelivered=interrupted == "yes",
            eta_ahead=eta_ahead == "yes",
            is_stopping=is_stopping == "yes",
            has_room=is_full == "no",
        )
        assert found.action is DELIVERED[row[-1]]
        if found.action in (Action.QUARANTINE, Action.EXHAUSTED):
            assert found.crashes == known + (source == "quarantine queue")


PATHS = {
    "is published as a new message": RetryPath.PUBLISH,
    "is requeued: its queue holds it": RetryPath.REQUEUE,
    "is copied to its delay queue": RetryPath.COPY,
    "is rejected: the broker moves it": RetryPath.REJECT,
}


def way_of_retry(facts):
    changed, exact, native, planned, source, rejects, copies, fits = facts
    ladder = Ladder((1000, 1000, 1000)) if native == "yes" else LADDER
    place = Place(
        "q",
        source == "quarantine queue",
        is_applied=planned == "yes",
        rejects=rejects == "yes",
        flags_returned=copies == "yes",
        native_retry=NativeRetry(ladder) if native == "yes" else None,
    )
    key = "q@1" if fits == "yes" else "q@3"
    found = arrive({"retries": 1}, place, ladder, known=1, routing_key=key, redelivered=False)
    return next_delay(found.delivery, ladder, found.retries, is_exact=exact == "yes", is_changed=changed == "yes")


@corpus("row", RETRY.rows)
def test_a_retry_takes_the_path_that_the_table_states(row):
    for facts in RETRY.cells(row):
        _, _, native, planned, *_ = facts
        if native == "no" or planned == "yes":  # a queue whose ladder is not applied holds no messages
            assert way_of_retry(facts) == (PATHS[row[-1]], 2)


@corpus("sorts, priority, path", [(1, 1, RetryPath.COPY), (1, 0, RetryPath.REJECT), (0, 9, RetryPath.REJECT)])
def test_a_message_with_a_priority_is_copied_where_the_delay_queue_sorts(sorts, priority, path):
    place = Place("q", sorts=bool(sorts))
    found = arrive({}, place, LADDER, known=0, routing_key="q", redelivered=False, priority=priority)
    assert found.delivery.path is path


@corpus("named, path", [("pays", RetryPath.REJECT), ("alias", RetryPath.COPY), (None, RetryPath.COPY)])
def test_a_message_that_does_not_name_a_task_with_its_own_tiers_is_copied(named, path):
    place = Place("q", own_tiers_of="pays")
    found = arrive({"task": named} if named else {}, place, LADDER, known=0, routing_key="q", redelivered=False)
    assert found.delivery.path is path


@corpus("source, action", [(False, Action.RUN), (True, Action.QUARANTINE)])
def test_an_interrupted_message_of_a_single_active_consumer_runs_unless_it_is_quarantined(source, action):
    place = Place("q", source, has_single_consumer=True)
    assert arrive({}, place, LADDER, known=0, routing_key="q", redelivered=True).action is action


@corpus("rejections", [1, 5])
def test_a_message_that_was_rejected_as_often_as_its_queue_allows_is_copied(rejections):
    headers = {"x-death": [{"queue": "q", "reason": "rejected", "count": rejections}]}
    place = Place("q", rejections_allowed=5)
    found = arrive(headers, place, LADDER, known=0, routing_key=f"q@{rejections}", redelivered=False)
    assert found.delivery.path is (RetryPath.COPY if rejections == 5 else RetryPath.REJECT)
    assert found.retries == rejections


def test_a_history_that_its_publisher_has_made_up_counts_no_retries():
    headers = {"x-death": [{"queue": "q", "reason": "rejected", "count": 2}]}
    found = arrive(headers, Place("q"), LADDER, known=0, routing_key="q", redelivered=False)
    assert (found.action, found.retries, found.delivery.path) == (Action.RUN, 0, RetryPath.COPY)


def parked(path):
    return Parked.of(Parked("m"), path, 2, 700 if path is RetryPath.COPY else None)


SETTLED: dict[str, Ending] = {
    "is acked": Ending(Action.ACK),
    **{
        f"is acked; the task is discarded: `{why}`": Ending(Action.ACK, reason=why)
        for why in ("ignored", "revoked", "expired")
    },
    "goes to the next tier": Ending(Action.PARK, RetryPath.REJECT, 2),
    "is copied to its delay queue": Ending(Action.PARK, RetryPath.COPY, 2),
    **{
        f"is exhausted: `{why}`": Ending(Action.EXHAUSTED, reason=why) for why in ("retries_used", "gave_up", "crashed")
    },
    "moves to the end of its queue": Ending(Action.RETURN),
    "is Celery's to reject": Ending(Action.LEAVE),
    "stays with the broker, which delivers it again": Ending(Action.LEAVE),
}


@corpus("row", ENDED.rows)
def test_a_message_is_settled_as_the_table_states(row):
    for how, left, rejects in ENDED.cells(row):
        attempt = Attempt(Delivery("q", 1, None, RetryPath.REJECT), LADDER, 1, 3 if left == "yes" else 1)
        if "self.retry()" in how:
            for path in RetryPath:
                wanted = path if rejects == "yes" or path is not RetryPath.REJECT else RetryPath.COPY
                found = end(ENDS[how], parked(path), rejects=rejects == "yes")
                assert found == Ending(Action.PARK, wanted, 2, 700 if path is RetryPath.COPY else None)
        else:
            assert end(ENDS[how], attempt, rejects=rejects == "yes") == SETTLED[row[-1]]


def test_a_task_whose_last_tier_repeats_has_always_a_retry_left():
    ladder = Ladder((1000, 2000), repeat_last=True)
    attempt = Attempt(Delivery("q", 2, None, RetryPath.REJECT), ladder, 900, ladder.retries)
    assert end(End.LOST, attempt) == Ending(Action.PARK, RetryPath.REJECT, 2)
    assert end(End.FAILED, attempt) == Ending(Action.EXHAUSTED, reason="gave_up")


def test_a_lost_process_publishes_no_new_message():
    """The old message goes on: only the task itself could have made the new one."""
    attempt = Attempt(Delivery("q", 0, None, RetryPath.PUBLISH), LADDER, 0, 3)
    assert end(End.LOST, attempt) == Ending(Action.PARK, RetryPath.COPY, 1)


def _other(action):
    return Action.LEAVE if action is Action.ACK else Action.ACK


#: By table: the test of its rows, the tested function, and a wrong answer of that function.
CHANGED: dict[str, tuple[Table, Callable[[Row], None], str, Callable[[Any], Any]]] = {
    "interrupted": (
        INTERRUPTED,
        unwrap(test_a_delivery_is_interrupted_as_the_table_states),
        "arrive",
        lambda found: found._replace(action=Action.RUN if found.action is not Action.RUN else Action.QUARANTINE),
    ),
    "arrival": (
        ARRIVAL,
        partial(unwrap(test_a_delivered_message_goes_where_the_table_states), max_crashes=3),
        "arrive",
        lambda found: found._replace(action=_other(found.action)),
    ),
    "retry": (
        RETRY,
        unwrap(test_a_retry_takes_the_path_that_the_table_states),
        "way_of_retry",
        lambda found: (RetryPath.COPY if found[0] is not RetryPath.COPY else RetryPath.REJECT, found[1]),
    ),
    "ended": (
        ENDED,
        unwrap(test_a_message_is_settled_as_the_table_states),
        "end",
        lambda found: found._replace(action=_other(found.action)),
    ),
}


@corpus("name", CHANGED)
def test_another_decision_in_one_row_fails_the_test_of_this_row_only(name, monkeypatch):
    each, check, function, change = CHANGED[name]
    decide = globals()[function]
    asked: list[str] = []
    changed: set[str] = set()

    def deciding(*facts, **more):
        asked.append(repr((facts, more)))
        found = decide(*facts, **more)
        return change(found) if asked[-1] in changed else found

    def fails(row):
        asked.clear()
        try:
            check(row)
        except AssertionError:
            return True
        return False

    monkeypatch.setitem(globals(), function, deciding)
    for wrong in each.rows:
        changed.clear()
        assert not fails(wrong)
        changed.update(asked)
        assert [row for row in each.rows if fails(row)] == [wrong]


def test_every_way_to_end_is_in_the_table():
    assert set(ENDS.values()) == set(End)


# -- the delivery ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 10), st.integers(0, 10), st.booleans())
def test_a_message_advances_by_itself_where_its_tier_is_its_number_of_retries(length, tier_index, retries, repeat_last):
    ladder = Ladder((1000,) * length, repeat_last=repeat_last)
    advances = advances_by_itself(Delivery("q", tier_index, None, RetryPath.REJECT), ladder, retries)
    if advances:
        # The broker's routing by the key and the worker's count give the same tier.
        by_the_broker = min(tier_index + 1, length)
        assert by_the_broker == ladder.tier_after(retries)
        assert retries < length or repeat_last
    elif retries < length:
        assert tier_index != retries
    else:
        assert not repeat_last or tier_index != length


@corpus("path", list(RetryPath))
def test_a_parked_retry_is_a_retry_with_its_path_and_tier(path):
    retry = Retry("m", KeyError("k"), 10.5)
    parked = Parked.of(retry, path, 2)
    for each in (parked, pickle.loads(pickle.dumps(parked))):
        assert isinstance(each, Parked)
        assert isinstance(each, Retry)
        assert (repr(each.exc), each.excs) == ("KeyError('k')", retry.excs)
        assert (each.path, each.tier_index, each.when, each.message) == (path, 2, 10.5, "m")
        assert str(each) == str(retry)
        assert each.humanize() == retry.humanize()
        assert each.is_eager is False
        assert each.sig is None
