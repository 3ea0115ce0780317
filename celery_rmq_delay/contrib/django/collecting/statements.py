"""The SQL of the collector, the same for PostgreSQL and SQLite. No I/O.

Each statement takes many rows at once; ``{source}`` is replaced by them, under the alias ``e``. Tables have no aliases:
RETURNING in SQLite does not accept them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..models import Operation, TaskState
from .facts import RANKS

_RECORDS = "rmq_delay_taskrecord"
_ATTEMPTS = "rmq_delay_attempt"
_PAYLOADS = "rmq_delay_payload"
_COLLECTED = "rmq_delay_collectedmessage"
_TALLIES = "rmq_delay_tally"
_GROUPS = "rmq_delay_failuregroup"

COUNTERS = ("parked", "recovered", "exhausted", "succeeded")
#: The types of columns in PostgreSQL; all others are "text".
TYPES = {
    **dict.fromkeys(("generation", "attempt", "max_retries", "crashes", "tier"), "integer"),
    **dict.fromkeys(("delay_ms", "runtime_ms", "failure_group_id", "record_id", *COUNTERS), "bigint"),
    **dict.fromkeys(("ladder_ms", "properties"), "jsonb"),
    **dict.fromkeys(("body", "headers"), "bytea"),
    **dict.fromkeys(("is_named", "muted"), "boolean"),
    **dict.fromkeys(
        ("changed_at", "parked_at", "due_at", "first_failed_at", "exhausted_at", "recovered_at", "ran_at", "slot",
         "occurred_at", "stored_at", "received_at", "counted_at", "first_seen", "last_seen"), "timestamptz",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """An SQL statement; ``columns`` are those that it takes from each row."""

    sql: str
    columns: Sequence[str]


def _insert(
    table: str, columns: Sequence[str], conflict: str, returning: str = "", more: Sequence[str] = ()
) -> Statement:
    """Return an INSERT; ``more`` are columns that only the rows have, not the table, for use in ``conflict``."""
    names = ", ".join(columns)
    # "WHERE true": without it SQLite parses ON CONFLICT as part of a join.
    text = (
        f"WITH batch AS (SELECT * FROM {{source}}) "  # noqa: S608 - names of ours
        f"INSERT INTO {table} ({names}) SELECT {names} FROM batch WHERE true ON CONFLICT {conflict}{returning}"
    )
    return Statement(text, (*columns, *more))


def _update(
    table: str, columns: Sequence[str], keys: Iterable[str], assignments: Iterable[str], rest: str = ""
) -> Statement:
    """Return an UPDATE of rows whose ``keys`` are those of a row of the source; ``rest`` follows this condition."""
    same = " AND ".join(f"{table}.{key} = e.{key}" for key in keys)
    return Statement(f"UPDATE {table} SET {', '.join(assignments)} FROM {{source}} WHERE {same}{rest}", columns)  # noqa: S608 - names of ours


def _filled(first: str, second: str, names: Iterable[str], empty: str = "''") -> list[str]:
    """Return assignments of the value of ``first``, or of ``second`` where it is empty."""
    return [f"{name} = COALESCE(NULLIF({first}.{name}, {empty}), {second}.{name})" for name in names]


def _earliest(table: str, name: str, new: str) -> str:
    old, new = f"{table}.{name}", f"{new}.{name}"
    return f"{name} = CASE WHEN {new} < {old} THEN {new} ELSE COALESCE({old}, {new}) END"


# -- task records --------------------------------------------------------------------------------------------------

_RECORD_KEY = ("task_id", "life")
#: Whether the message names its life, as messages do that were requeued from the database.
_NAMED = ("is_named",)
#: Columns that stay the same for a task: any of its facts may set them.
_LASTING = (
    "root_id", "parent_id", "canvas_id", "name", "queue", "exchange", "routing_key", "args_preview", "kwargs_preview",
)  # fmt: skip
#: Columns that the newest fact sets, also to empty values.
_OF_THE_NEWEST = (
    "state", "changed_at", "generation", "attempt", "worker", "crashes", "tier", "delay_ms", "delay_queue", "due_at",
    "exhausted_at", "recovered_at", "reason",
)  # fmt: skip
_ERROR = ("exception_type", "exception_message", "failure_group_id")
_RECORD = (
    *_RECORD_KEY, *_LASTING, *_OF_THE_NEWEST, *_ERROR, "max_retries", "ladder_ms", "parked_at", "first_failed_at",
    "call_digest",
)  # fmt: skip
_EMPTY_LIST = "'[]'"


def _rank(state: str) -> str:
    ranks = " ".join(f"WHEN '{name.value}' THEN {rank}" for name, rank in RANKS.items())
    return f"CASE {state} {ranks} ELSE 9 END"


# States that the collector has written follow the order of events. An operator's action wins over events that were
# already on their way: a requeue increments the generation, and after a parked task was discarded only a later attempt
# counts.
#
# An id may be used again: a task that failed for the first time, or was exhausted, after its row had recovered is a new
# use. And a task that a worker has discarded (`Task.replace`) does not hide a message in the exhausted queue.
_IS_USED_AGAIN = f"""{_RECORDS}.state = '{TaskState.RECOVERED}' AND (excluded.first_failed_at > {_RECORDS}.recovered_at
    OR excluded.exhausted_at > {_RECORDS}.recovered_at)"""
_IS_BACK = f"""{_RECORDS}.state = '{TaskState.DISCARDED}' AND {_RECORDS}.operation_id IS NULL
    AND {_RECORDS}.exhausted_at IS NULL AND excluded.state = '{TaskState.EXHAUSTED}'
    AND excluded.generation = {_RECORDS}.generation"""
_IS_NEWER = f"""
    COALESCE({_IS_USED_AGAIN}, false) OR ({_IS_BACK})
    OR excluded.generation > {_RECORDS}.generation OR (excluded.generation = {_RECORDS}.generation AND CASE
        WHEN {_RECORDS}.state = '{TaskState.REQUEUED}' THEN true
        WHEN {_RECORDS}.state IN ('{TaskState.REQUEUING}', '{TaskState.UNKNOWN}', '{TaskState.DISCARDED}')
        THEN {_RECORDS}.exhausted_at IS NULL AND (excluded.attempt > {_RECORDS}.attempt
            OR (excluded.attempt = {_RECORDS}.attempt AND excluded.state = '{TaskState.EXHAUSTED}'))
        ELSE excluded.attempt > {_RECORDS}.attempt OR (excluded.attempt = {_RECORDS}.attempt
            AND {_rank("excluded.state")} > {_rank(f"{_RECORDS}.state")})
    END)"""
# A row with a stored message stands for that message. It changes with facts of the same call, and with facts of a
# later generation that name its life; all others are about another use of its id.
_IS_ITS_OWN = f"""({_RECORDS}.call_digest IN ('', excluded.call_digest)
    OR ((excluded.generation > {_RECORDS}.generation OR {_RECORDS}.state = '{TaskState.REQUEUED}')
        AND ({_RECORDS}.task_id, {_RECORDS}.life) IN (SELECT task_id, life FROM batch WHERE is_named)))"""  # noqa: S608 - names of ours
# A recovered task keeps the error that it has recovered from.
_RECOVERS = f"excluded.state = '{TaskState.RECOVERED}' AND excluded.generation = {_RECORDS}.generation"

_RETURNED = f" RETURNING {_RECORDS}.id, {_RECORDS}.task_id, {_RECORDS}.life"

#: Inserts or updates the rows whose facts are newer than the table's, and returns those.
RECORDS = _insert(
    _RECORDS,
    _RECORD,
    "(task_id, life) DO UPDATE SET "
    + ", ".join(
        [
            *(f"{name} = excluded.{name}" for name in _OF_THE_NEWEST),
            *(f"{name} = CASE WHEN {_RECOVERS} THEN {_RECORDS}.{name} ELSE excluded.{name} END" for name in _ERROR),
            *_filled("excluded", _RECORDS, _LASTING),
            *_filled("excluded", _RECORDS, ["ladder_ms"], _EMPTY_LIST),
            f"max_retries = COALESCE(excluded.max_retries, {_RECORDS}.max_retries)",
            f"parked_at = CASE WHEN excluded.generation > {_RECORDS}.generation THEN excluded.parked_at "
            f"ELSE COALESCE(excluded.parked_at, {_RECORDS}.parked_at) END",
            _earliest(_RECORDS, "first_failed_at", "excluded"),
            # A task that no worker has run keeps its message: it may be requeued again.
            f"call_digest = CASE WHEN excluded.state = '{TaskState.DISCARDED}' THEN {_RECORDS}.call_digest "
            "ELSE excluded.call_digest END",
        ]
    )
    + f" WHERE ({_IS_NEWER}) AND {_IS_ITS_OWN}",
    _RETURNED,
    _NAMED,
)

_SAME_LIFE = f"e.generation = {_RECORDS}.generation"
_SAME_END = f"{_SAME_LIFE} AND e.attempt = {_RECORDS}.attempt AND e.state = {_RECORDS}.state"
# The event "parked" arrived after a later one.
_PARKED_BEFORE = (
    f"{_SAME_LIFE} AND {_RECORDS}.state <> '{TaskState.PARKED}' "
    f"AND COALESCE(e.parked_at > {_RECORDS}.parked_at, e.parked_at IS NOT NULL)"
)
_SETS_ERROR = (
    f"({_RECORDS}.state = '{TaskState.RECOVERED}' AND {_PARKED_BEFORE}) "
    f"OR ({_RECORDS}.exception_type = '' AND {_SAME_END})"
)

_GAPS = [
    *_filled(_RECORDS, "e", _LASTING),
    *_filled(_RECORDS, "e", ["ladder_ms"], _EMPTY_LIST),
    f"max_retries = COALESCE({_RECORDS}.max_retries, e.max_retries)",
    _earliest(_RECORDS, "first_failed_at", "e"),
    *(f"{name} = CASE WHEN {_SETS_ERROR} THEN e.{name} ELSE {_RECORDS}.{name} END" for name in _ERROR),
    f"parked_at = CASE WHEN {_PARKED_BEFORE} THEN e.parked_at ELSE {_RECORDS}.parked_at END",
]

#: Fills the gaps of rows whose facts arrived late, and returns all of them.
LATE = _update(_RECORDS, (*_RECORD, *_NAMED), _RECORD_KEY, _GAPS, _RETURNED)

# The event of a message arrives before or after it, and an operator may have discarded the task in between. A worker
# sends the event after the message: one that was exhausted later is another use of the id, which the discard must not
# hide.
_IS_ITS_MESSAGE = f"""{_SAME_LIFE} AND (
    ({_RECORDS}.state = '{TaskState.EXHAUSTED}' AND {_RECORDS}.call_digest = e.call_digest)
    OR ({_RECORDS}.call_digest = '' AND e.attempt = {_RECORDS}.attempt AND ({_RECORDS}.state = '{TaskState.EXHAUSTED}'
        OR ({_RECORDS}.state = '{TaskState.DISCARDED}' AND {_RECORDS}.exhausted_at IS NOT NULL
            AND e.exhausted_at <= {_RECORDS}.exhausted_at))))"""

#: Adds messages to the rows that have their events, and fills their gaps; returns those rows.
MESSAGES = _update(
    _RECORDS,
    (*_RECORD, *_NAMED),
    _RECORD_KEY,
    [*_GAPS, "call_digest = e.call_digest"],
    f" AND {_IS_ITS_MESSAGE}{_RETURNED}",
)

# Of a task that was discarded while it was parked, only a later attempt of the same use of the id counts: a broker that
# crashes soon after the discard may still have the message. Of any task, the message of another requeue counts: it
# names the row's life, which a new task with the same id does not.
_RAN = f"""({_RECORDS}.exhausted_at IS NULL AND {_SAME_LIFE} AND e.attempt > {_RECORDS}.attempt
        AND COALESCE(e.first_failed_at <= {_RECORDS}.changed_at, true)
    OR e.is_named AND e.generation <> {_RECORDS}.generation AND e.ran_at > {_RECORDS}.changed_at)"""

#: Marks rows that a user has discarded, and whose task has run since. Returns the rows that were not marked since they
#: were discarded.
RAN_AFTER_DISCARD = _update(
    _RECORDS,
    (*_RECORD_KEY, "generation", "attempt", "ran_at", "first_failed_at", *_NAMED),
    _RECORD_KEY,
    [f"ran_after_discard_at = CASE WHEN e.ran_at > {_RECORDS}.changed_at THEN e.ran_at ELSE {_RECORDS}.changed_at END"],
    f""" AND {_RECORDS}.state = '{TaskState.DISCARDED}' AND {_RAN}
    AND COALESCE({_RECORDS}.ran_after_discard_at < {_RECORDS}.changed_at, true)
    AND {_RECORDS}.operation_id IN (SELECT id FROM rmq_delay_operation WHERE kind = '{Operation.Kind.DISCARD}')
    RETURNING {_RECORDS}.id""",  # noqa: S608 - names of ours
)

# -- their histories and messages ----------------------------------------------------------------------------------

_FILLED_ATTEMPT = ("worker", "exception_type", "exception_message", "frame", "traceback", "reason")
_ATTEMPT = (
    "event_id", "record_id", "kind", "generation", "attempt", "occurred_at", "runtime_ms", "tier", "delay_ms", "due_at",
    *_FILLED_ATTEMPT,
)  # fmt: skip
#: Returns the new ones: only they are counted.
ATTEMPTS = _insert(_ATTEMPTS, _ATTEMPT, "(event_id) DO NOTHING", " RETURNING event_id")
#: Adds the data of the second of two messages about one attempt.
ATTEMPTS_AGAIN = _update(
    _ATTEMPTS,
    _ATTEMPT,
    ["event_id"],
    [*_filled(_ATTEMPTS, "e", _FILLED_ATTEMPT), f"runtime_ms = COALESCE({_ATTEMPTS}.runtime_ms, e.runtime_ms)"],
)

_MESSAGE = ("body", "headers", "properties", "stored_at")
#: Stores messages. A generation that a requeue with unknown outcome has used stays used.
PAYLOADS = _insert(
    _PAYLOADS,
    ("record_id", "generation", *_MESSAGE),
    "(record_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _MESSAGE)
    + f", generation = CASE WHEN excluded.generation > {_PAYLOADS}.generation THEN excluded.generation "
    f"ELSE {_PAYLOADS}.generation END",
)

#: Deletes the messages of tasks that were requeued and have reached a worker.
PAYLOADS_OVER = Statement(
    f"DELETE FROM {_PAYLOADS} WHERE record_id IN (SELECT record_id FROM {{source}})",  # noqa: S608 - names of ours
    ["record_id"],
)

#: Returns the messages that were not delivered before.
COLLECTED = _insert(_COLLECTED, ["digest"], "(digest) DO NOTHING", " RETURNING digest")
COLLECTED_INTO = _update(_COLLECTED, ["digest", "record_id"], ["digest"], ["record_id = e.record_id"])

# -- counters and names --------------------------------------------------------------------------------------------

TALLIES = _insert(
    _TALLIES,
    ("slot", "queue", "name", "fingerprint", *COUNTERS),
    "(slot, queue, name, fingerprint) DO UPDATE SET "
    + ", ".join(f"{name} = {_TALLIES}.{name} + excluded.{name}" for name in COUNTERS),
)
ROLLUPS = _insert(
    "rmq_delay_countedrollup",
    ("event_id", "counted_at"),
    "(event_id) DO NOTHING",
    " RETURNING event_id",
)
LOOKUPS = _insert("rmq_delay_lookupvalue", ("kind", "value"), "(kind, value) DO NOTHING")
_GROUP = ("fingerprint", "exception_type", "message", "frame", "first_seen", "last_seen", "note", "muted")
GROUPS = _insert(_GROUPS, _GROUP, "(fingerprint) DO NOTHING")
_LATER = f"CASE WHEN excluded.last_seen > {_GROUPS}.last_seen THEN excluded.last_seen ELSE {_GROUPS}.last_seen END"
#: Widens the time in which groups were seen. Not an UPDATE: that would lock its rows in any order.
GROUPS_SEEN = _insert(
    _GROUPS,
    _GROUP,
    f"(fingerprint) DO UPDATE SET {_earliest(_GROUPS, 'first_seen', 'excluded')}, last_seen = {_LATER}",
)
#: A message that came again is received later: a requeue deletes its row only where it did not come again.
UNREADABLE = _insert(
    "rmq_delay_unreadablemessage",
    ("digest", "queue", "error", "body", "headers", "properties", "received_at"),
    "(digest) DO UPDATE SET received_at = excluded.received_at",
)
