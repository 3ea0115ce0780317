"""The rows that the page shows, as JSON, made from the tables of a finished run. Reads no database."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ....headers import printable
from ....history.tables import BACKTEST_FIGURES, ENDS, EXCEPTION, FEWER_TIERS, FIGURES, GIVE_UP, TASK, Kind
from ....redaction import shortened
from .insight_tables import TABLES, Output

if TYPE_CHECKING:
    import pyarrow as pa

#: Days that are loaded of tables with rows for each day.
DAYS = 90
#: The most rows of each table; the most frequent ones are loaded.
CURVES = 20
OUTCOMES = 200
INCIDENTS = 500
LADDERS = 50
EXCEPTIONS = 50
POINTS = 400
MAX_NAME = 255
MAX_NAMES = 20
#: The largest step from the delay of a jitter lane to that of the next one. Delays further apart are of two ladders.
_STEP = 2

_Row = dict[str, Any]
_Some = tuple[list[_Row], int]


@dataclass(frozen=True)
class Rows:
    """The rows by table, and the numbers of those that are ``left_out``."""

    since: date
    by_table: dict[str, list[_Row]]
    left_out: dict[str, int]


def read_rows(output: Output) -> Rows:
    """Return the rows that the page shows. Raises `OutputError`."""
    last = output.last_day
    window = [last - timedelta(days=back) for back in reversed(range(DAYS))]
    found = {
        "recovery_curve": _curves(output.read("recovery_curve", [last])),
        "tier_outcomes": _outcomes(output.read("tier_outcomes", window)),
        "incidents": _incidents(output.read("incidents", window)),
        "ladder_advice": _advice(output.read("ladder_advice", [last])),
        "exception_advice": _exceptions(output.read("exception_advice", [last])),
        "what_if": _what_if(output.read("what_if", [last])),
        "hourly": _hours(output.read("hourly", window)),
    }
    since = min([output.first_day, *(output.days("hourly") or output.days("tier_outcomes"))])
    by_table = {table: rows for table, (rows, _count) in found.items()}
    return Rows(max(since, window[0]), by_table, {table: count for table, (_rows, count) in found.items() if count})


def _curves(table: pa.Table) -> _Some:
    """Return the curves of the tasks and errors with the most episodes, and the number of others."""
    import pyarrow as pa
    from pyarrow import compute

    all_of_them = table.group_by(["scope", "name"]).aggregate([("episodes", "max"), ("censored", "max")]).to_pylist()
    rows = []
    for scope in (TASK, EXCEPTION):
        ranked = sorted(
            (each for each in all_of_them if each["scope"] == scope),
            key=lambda each: (-_whole(each["episodes_max"]), str(each["name"])),
        )
        for each in ranked[:CURVES]:
            own = compute.and_(
                compute.equal(table["scope"], scope), compute.equal(table["name"], pa.scalar(each["name"], pa.string()))
            )
            rows.append(
                {
                    "scope": scope,
                    "name": _name(each["name"]),
                    "episodes": _whole(each["episodes_max"]),
                    "censored": _whole(each["censored_max"]),
                    "points": _points(table.filter(own).sort_by("t_seconds").to_pylist()),
                }
            )
    return rows, len(all_of_them) - len(rows)


def _points(rows: list[_Row]) -> list[list[float | None]]:
    """Return ``[seconds, share, low, high]`` in the order of time; ``low`` and ``high`` may be null."""
    names = ("t_seconds", "recovered_share", "share_low", "share_high")
    points = [[_number(row[name]) for name in names] for row in rows]
    known = [point for point in points if point[0] is not None and point[1] is not None]
    step = math.ceil(len(known) / POINTS)
    return known if step < 2 else [*known[:-1:step], known[-1]]


def _outcomes(table: pa.Table) -> _Some:
    """Return the outcomes by tier of a queue's task and error, of all days and lanes, the most parked first."""
    counted = ("parked", "recovered", "exhausted", "wasted_ms")
    # Days differ: their numbers of independent tasks add up, too.
    by = ["task", "queue", "exception_type", "tier", "delay_ms"]
    summed = table.group_by(by).aggregate([(name, "sum") for name in (*counted, "independent")])
    ranked = _of_tiers(summed.to_pylist(), by)
    ranked.sort(key=lambda row: (-_whole(row["parked_sum"]), *(str(row[name]) for name in by)))
    kept = ranked[:OUTCOMES]
    first = {tuple(row[name] for name in by[:3]): place for place, row in reversed(list(enumerate(kept)))}
    kept.sort(key=lambda row: (first[tuple(row[name] for name in by[:3])], row["tier"] or 0, row["delay_ms"] or 0))
    rows = [
        {
            **{name: _name(row[name]) for name in by[:3]},
            "tier": row["tier"],
            "delay_ms": row["delay_ms"],
            "independent": _number(row["independent_sum"]),
            **{name: _whole(row[f"{name}_sum"]) for name in counted},
        }
        for row in kept
    ]
    return rows, len(ranked) - len(rows)


def _of_tiers(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``rows``, which ``by`` identifies, with one for all lanes of a tier: the sums of their other columns.

    Its ``delay_ms`` is the middle of the delays that the queue's lanes have: the tier's own. Exact delays, whose
    ``tier`` is None, stay as they are.
    """
    found: dict[tuple[Any, Any], set[int]] = defaultdict(set)
    for row in rows:
        if row["tier"] is not None and row["delay_ms"] is not None:
            found[row["queue"], row["tier"]].add(row["delay_ms"])
    own = {(*key, delay): middle for key, delays in found.items() for delay, middle in _middles(sorted(delays))}
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        of_tier = {**row, "delay_ms": own.get((row["queue"], row["tier"], row["delay_ms"]), row["delay_ms"])}
        known = sums.setdefault(tuple(of_tier[name] for name in by), of_tier)
        if known is not of_tier:
            known.update({name: (known[name] or 0) + (row[name] or 0) for name in row if name not in by})
    return list(sums.values())


def _middles(delays: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each delay of a tier, in order, with the middle of the lanes to which it belongs."""
    start = 0
    for end in range(1, len(delays) + 1):
        if end == len(delays) or delays[end] > _STEP * delays[end - 1]:
            lanes = delays[start:end]
            yield from ((delay, round((lanes[0] + lanes[-1]) / 2)) for delay in lanes)
            start = end


def _incidents(table: pa.Table) -> _Some:
    order = [("excess", "descending"), ("started_at", "descending"), ("ended_at", "descending")]
    rows = [_stored("incidents", row) for row in table.sort_by(order).slice(0, INCIDENTS).to_pylist()]
    return rows, table.num_rows - len(rows)


def _advice(table: pa.Table) -> _Some:
    """Return the advice by queue, the busiest first; that for a whole queue comes before that for its tasks."""
    found = table.to_pylist()
    busiest: dict[str, int] = {}
    for row in found:
        busiest[row["queue"]] = max(busiest.get(row["queue"], 0), _whole(row["episodes"]))
    found.sort(
        key=lambda row: (-busiest[row["queue"]], str(row["queue"]), row["task"] is not None, -_whole(row["episodes"]))
    )
    rows = [
        {
            "current": _popped(row, "current_"),
            "advised": _popped(row, "advised_"),
            "backtest_current": _popped(row, "backtest_current_", BACKTEST_FIGURES),
            "backtest_advised": _popped(row, "backtest_advised_", BACKTEST_FIGURES),
            **_stored("ladder_advice", row, nullable=("lost", "counted", "backtest_failures")),
        }
        for row in found[:LADDERS]
    ]
    return rows, len(found) - len(rows)


def _exceptions(table: pa.Table) -> _Some:
    """Return the advice per exception: those to give up on by the retries that it saves, then the others."""
    kinds = (GIVE_UP, FEWER_TIERS)
    known = [row for row in table.to_pylist() if row["kind"] in kinds]
    by_name = ("queue", "task", "exception_type")
    known.sort(key=lambda row: tuple(str(row[name]) for name in by_name))
    known.sort(key=lambda row: (kinds.index(row["kind"]), -_whole(row["retries"]), -_whole(row["failures"])))
    rows = [_stored("exception_advice", row, nullable=("retries", "wasted_ms")) for row in known[:EXCEPTIONS]]
    return rows, len(known) - len(rows)


def _what_if(table: pa.Table) -> _Some:
    found = table.to_pylist()
    rows = [{"figures": _popped(row, ""), **_stored("what_if", row)} for row in found[:LADDERS]]
    return rows, len(found) - len(rows)


def _hours(table: pa.Table) -> _Some:
    counted = ("first_attempts", "failures", "recovered", "exhausted")
    summed = table.group_by("hour").aggregate([(name, "sum") for name in counted]).sort_by("hour")
    rows = [
        {"hour": row["hour"].isoformat(), **{name: _whole(row[f"{name}_sum"]) for name in counted}}
        for row in summed.to_pylist()
    ]
    return rows, 0


def _popped(row: _Row, prefix: str, names: Iterable[str] = FIGURES) -> dict[str, list[float | None]]:
    """Remove figures from a row, and return them by name as ``[value, low, high]``, each null where it is not known."""
    return {name: [_number(row.pop(f"{prefix}{name}{end}", None)) for end in ENDS] for name in names}


def _stored(table: str, row: _Row, nullable: Container[str] = ()) -> _Row:
    """Return a row as JSON can store it: null is empty or 0, and stays null in float columns and ``nullable`` ones."""
    return {
        name: None if value is None and name in nullable else _STORED[TABLES[table][name]](value)
        for name, value in row.items()
    }


def _name(value: str | None) -> str:
    """Return a name that a database can store."""
    return printable(shortened(value or "", MAX_NAME))


def _names(values: Iterable[str | None] | None) -> list[str]:
    return [_name(value) for value in list(values or ())[:MAX_NAMES]]


def _delays(values: Iterable[int | None] | None) -> list[int]:
    return [value for value in values or () if value is not None and value > 0]


def _whole(value: int | None) -> int:
    return max(0, value or 0)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


#: The values of the kinds of columns as JSON can store them.
_STORED: Mapping[Kind, Callable[[Any], Any]] = {
    "text": _name, "names": _names, "delays": _delays, "int32": _whole, "int64": _whole, "float64": _number,
    "flag": bool, "time": datetime.isoformat,
}  # fmt: skip
