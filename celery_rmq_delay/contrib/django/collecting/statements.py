"""The SQL of the collector, the same for PostgreSQL and SQLite. No I/O.

Each statement takes many rows at once; ``{source}`` is where they stand, as ``e``. Tables go by their full names: the
RETURNING of SQLite knows no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..models import TaskState
from .facts import RANKS

Columns = dict[str, str]

_RECORDS = "rmq_delay_taskrecord"
_ATTEMPTS = "rmq_delay_attempt"
_PAYLOADS = "rmq_delay_payload"
_TALLIES = "rmq_delay_tally"
_GROUPS = "rmq_delay_failuregroup"


@dataclass(frozen=True)
class Statement:
    """``columns`` are the names of the rows' values and their types in PostgreSQL."""

    sql: str
    columns: Columns


def _insert(table: str, columns: Columns, conflict: str, returning: str = "") -> Statement:
    names = ", ".join(columns)
    # "WHERE true": without it SQLite would take ON CONFLICT for a part of a join.
    text = f"INSERT INTO {table} ({names}) SELECT {names} FROM {{source}} WHERE true ON CONFLICT {conflict}"  # noqa: S608 - names of ours
    return Statement(text + returning, columns)


def _update(table: str, columns: Columns, key: str, assignments: Iterable[str], returning: str = "") -> Statement:
    text = f"UPDATE {table} SET {', '.join(assignments)} FROM {{source}} WHERE {table}.{key} = e.{key}"  # noqa: S608 - names of ours
    return Statement(text + returning, columns)


def _filled(first: str, second: str, names: Iterable[str], empty: str = "''") -> list[str]:
    """Return assignments that take the value of ``first``, and the one of ``second`` where that is empty."""
    return [f"{name} = COALESCE(NULLIF({first}.{name}, {empty}), {second}.{name})" for name in names]


def _earliest(table: str, name: str, new: str) -> str:
    old, new = f"{table}.{name}", f"{new}.{name}"
    return f"{name} = CASE WHEN {new} < {old} THEN {new} ELSE COALESCE({old}, {new}) END"


# -- task records --------------------------------------------------------------------------------------------------

_RECORD: Columns = {
    **dict.fromkeys(("task_id", "root_id", "parent_id", "canvas_id", "name", "state"), "text"),
    "changed_at": "timestamptz",
    **dict.fromkeys(("queue", "exchange", "routing_key", "worker"), "text"),
    **dict.fromkeys(("generation", "attempt", "max_retries", "crashes", "tier"), "integer"),
    "delay_ms": "bigint",
    "delay_queue": "text",
    "ladder_ms": "jsonb",
    **dict.fromkeys(("parked_at", "due_at", "first_failed_at", "exhausted_at", "recovered_at"), "timestamptz"),
    **dict.fromkeys(("exception_type", "exception_message", "reason"), "text"),
    "group_id": "bigint",
    **dict.fromkeys(("args_preview", "kwargs_preview"), "text"),
}
#: What a task is, whichever of its facts says it.
_LASTING = (
    "root_id", "parent_id", "canvas_id", "name", "queue", "exchange", "routing_key", "args_preview", "kwargs_preview",
)  # fmt: skip
#: What the newest fact says, or leaves out.
_OF_THE_NEWEST = (
    "state", "changed_at", "generation", "attempt", "worker", "crashes", "tier", "delay_ms", "delay_queue", "due_at",
    "exhausted_at", "recovered_at", "reason",
)  # fmt: skip
_ERROR = ("exception_type", "exception_message", "group_id")
_EMPTY_LIST = "'[]'"


def _rank(state: str) -> str:
    ranks = " ".join(f"WHEN '{name.value}' THEN {rank}" for name, rank in RANKS.items())
    return f"CASE {state} {ranks} ELSE 9 END"


# What the collector brings about goes on by itself. What a person has done stands against all that was on its way: a
# requeue is one generation on, a parked task that was set aside can only be heard of at a later attempt.
#
# An id may be used again. A task that failed for the first time, or was exhausted, after its row had recovered lives
# anew; and what lies in the exhausted queue is not hidden behind a task that a worker has set aside (`Task.replace`).
_LIVES_ANEW = f"""{_RECORDS}.state = '{TaskState.RECOVERED}' AND (excluded.first_failed_at > {_RECORDS}.recovered_at
    OR excluded.exhausted_at > {_RECORDS}.recovered_at)"""
_IS_BACK = f"""{_RECORDS}.state = '{TaskState.DISCARDED}' AND {_RECORDS}.operation_id IS NULL
    AND {_RECORDS}.exhausted_at IS NULL AND excluded.state = '{TaskState.EXHAUSTED}'
    AND excluded.generation = {_RECORDS}.generation"""
_IS_NEWER = f"""
    COALESCE({_LIVES_ANEW}, false) OR ({_IS_BACK})
    OR excluded.generation > {_RECORDS}.generation OR (excluded.generation = {_RECORDS}.generation AND CASE
        WHEN {_RECORDS}.state = '{TaskState.REQUEUED}' THEN true
        WHEN {_RECORDS}.state IN ('{TaskState.REQUEUING}', '{TaskState.UNKNOWN}', '{TaskState.DISCARDED}')
        THEN {_RECORDS}.exhausted_at IS NULL AND (excluded.attempt > {_RECORDS}.attempt
            OR (excluded.attempt = {_RECORDS}.attempt AND excluded.state = '{TaskState.EXHAUSTED}'))
        ELSE excluded.attempt > {_RECORDS}.attempt OR (excluded.attempt = {_RECORDS}.attempt
            AND {_rank("excluded.state")} > {_rank(f"{_RECORDS}.state")})
    END)"""
# A task that has recovered keeps the error that it has recovered from.
_RECOVERS = f"excluded.state = '{TaskState.RECOVERED}' AND excluded.generation = {_RECORDS}.generation"

#: Takes over the rows whose facts are newer than the table's, and returns those.
RECORDS = _insert(
    _RECORDS,
    _RECORD,
    "(task_id) DO UPDATE SET "
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
        ]
    )
    + f" WHERE {_IS_NEWER}",
    f" RETURNING {_RECORDS}.id, {_RECORDS}.task_id",
)

_SAME_LIFE = f"e.generation = {_RECORDS}.generation"
_SAME_END = f"{_SAME_LIFE} AND e.attempt = {_RECORDS}.attempt AND e.state = {_RECORDS}.state"
# That it was parked is told of after what followed.
_PARKED_BEFORE = (
    f"{_SAME_LIFE} AND {_RECORDS}.state <> '{TaskState.PARKED}' "
    f"AND COALESCE(e.parked_at > {_RECORDS}.parked_at, e.parked_at IS NOT NULL)"
)
_TELLS_ERROR = (
    f"({_RECORDS}.state = '{TaskState.RECOVERED}' AND {_PARKED_BEFORE}) "
    f"OR ({_RECORDS}.exception_type = '' AND {_SAME_END})"
)

#: Fills the gaps of rows whose facts came late, and returns all of them.
LATE = _update(
    _RECORDS,
    _RECORD,
    "task_id",
    [
        *_filled(_RECORDS, "e", _LASTING),
        *_filled(_RECORDS, "e", ["ladder_ms"], _EMPTY_LIST),
        f"max_retries = COALESCE({_RECORDS}.max_retries, e.max_retries)",
        _earliest(_RECORDS, "first_failed_at", "e"),
        *(f"{name} = CASE WHEN {_TELLS_ERROR} THEN e.{name} ELSE {_RECORDS}.{name} END" for name in _ERROR),
        f"parked_at = CASE WHEN {_PARKED_BEFORE} THEN e.parked_at ELSE {_RECORDS}.parked_at END",
    ],
    f" RETURNING {_RECORDS}.id, {_RECORDS}.task_id",
)

# -- their histories and messages ----------------------------------------------------------------------------------

_ATTEMPT: Columns = {
    "event_id": "text",
    "record_id": "bigint",
    "kind": "text",
    **dict.fromkeys(("generation", "attempt"), "integer"),
    "occurred_at": "timestamptz",
    "runtime_ms": "bigint",
    "worker": "text",
    "tier": "integer",
    "delay_ms": "bigint",
    "due_at": "timestamptz",
    **dict.fromkeys(("exception_type", "exception_message", "frame", "traceback", "reason"), "text"),
}
#: Returns what is new: only that is counted.
ATTEMPTS = _insert(_ATTEMPTS, _ATTEMPT, "(event_id) DO NOTHING", " RETURNING event_id")
_FILLED_ATTEMPT = ("worker", "exception_type", "exception_message", "frame", "traceback", "reason")
#: Adds what the second of two messages about one attempt says.
ATTEMPTS_AGAIN = _update(
    _ATTEMPTS,
    _ATTEMPT,
    "event_id",
    [*_filled(_ATTEMPTS, "e", _FILLED_ATTEMPT), f"runtime_ms = COALESCE({_ATTEMPTS}.runtime_ms, e.runtime_ms)"],
)

_PAYLOAD: Columns = {
    "record_id": "bigint",
    "generation": "integer",
    **dict.fromkeys(("body", "headers"), "bytea"),
    "properties": "jsonb",
    "stored_at": "timestamptz",
}
_KEPT = ("generation", "body", "headers", "properties", "stored_at")
#: Keeps messages whose tasks' records are of the same life and not on their way again.
PAYLOADS = Statement(
    f"""INSERT INTO {_PAYLOADS} (record_id, {", ".join(_KEPT)})
    SELECT record_id, {", ".join(f"e.{name}" for name in _KEPT)} FROM {{source}}
    JOIN {_RECORDS} ON {_RECORDS}.id = record_id AND {_RECORDS}.generation = e.generation
    WHERE {_RECORDS}.state NOT IN ('{TaskState.REQUEUED}', '{TaskState.RECOVERED}')
    ON CONFLICT (record_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _KEPT)}
    WHERE excluded.generation >= {_PAYLOADS}.generation""",  # noqa: S608 - names of ours
    _PAYLOAD,
)

#: Drops messages of lives that are over: their tasks were requeued, and have been heard of since.
PAYLOADS_OVER = Statement(
    f"""DELETE FROM {_PAYLOADS} WHERE EXISTS (SELECT 1 FROM {{source}}
    WHERE e.record_id = {_PAYLOADS}.record_id AND e.generation > {_PAYLOADS}.generation)""",  # noqa: S608 - names of ours
    {"record_id": "bigint", "generation": "integer"},
)

# -- counters and names --------------------------------------------------------------------------------------------

COUNTERS = ("parked", "recovered", "exhausted", "succeeded")
TALLIES = _insert(
    _TALLIES,
    {
        "slot": "timestamptz",
        **dict.fromkeys(("queue", "name", "fingerprint"), "text"),
        **dict.fromkeys(COUNTERS, "bigint"),
    },
    "(slot, queue, name, fingerprint) DO UPDATE SET "
    + ", ".join(f"{name} = {_TALLIES}.{name} + excluded.{name}" for name in COUNTERS),
)
ROLLUPS = _insert(
    "rmq_delay_countedrollup",
    {"event_id": "text", "counted_at": "timestamptz"},
    "(event_id) DO NOTHING",
    " RETURNING event_id",
)
LOOKUPS = _insert("rmq_delay_lookupvalue", {"kind": "text", "value": "text"}, "(kind, value) DO NOTHING")
_GROUP: Columns = {
    **dict.fromkeys(("fingerprint", "exception_type", "message", "frame"), "text"),
    **dict.fromkeys(("first_seen", "last_seen"), "timestamptz"),
    "note": "text",
    "muted": "boolean",
}
GROUPS = _insert(_GROUPS, _GROUP, "(fingerprint) DO NOTHING")
_LATER = f"CASE WHEN excluded.last_seen > {_GROUPS}.last_seen THEN excluded.last_seen ELSE {_GROUPS}.last_seen END"
#: Widens the time in which groups were seen. Not an UPDATE: that would take its rows in any order.
GROUPS_SEEN = _insert(
    _GROUPS,
    _GROUP,
    f"(fingerprint) DO UPDATE SET {_earliest(_GROUPS, 'first_seen', 'excluded')}, last_seen = {_LATER}",
)
UNREADABLE = _insert(
    "rmq_delay_unreadablemessage",
    {
        **dict.fromkeys(("digest", "queue", "error"), "text"),
        **dict.fromkeys(("body", "headers"), "bytea"),
        "properties": "jsonb",
        "received_at": "timestamptz",
    },
    "(digest) DO NOTHING",
)
