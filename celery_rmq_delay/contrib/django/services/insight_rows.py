"""Rows of the insights' models, made from the tables of a finished run. Reads no database."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from django.db import models

from ....headers import printable
from ....redaction import shortened
from ..models import (
    ExceptionAdvice,
    Incident,
    InsightHour,
    LadderAdvice,
    RecoveryCurve,
    TierOutcome,
    WhatIf,
)
from .insight_lanes import of_tiers
from .insight_tables import BACKTEST_FIGURES, ENDS, FIGURES, TABLES, Kind, Output

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


@dataclass(frozen=True)
class Rows:
    """Rows of the models, by model, without their run; ``left_out``: the number of other rows, by model."""

    since: date
    by_model: list[list[Any]]
    left_out: dict[str, int]


def read_rows(output: Output) -> Rows:
    """Return the rows that the page shows. Raises `OutputError`."""
    last = output.last_day
    window = [last - timedelta(days=back) for back in reversed(range(DAYS))]
    tables = (
        _curves(output.read("recovery_curve", [last])),
        _outcomes(output.read("tier_outcomes", window)),
        _incidents(output.read("incidents", window)),
        _advice(output.read("ladder_advice", [last])),
        _exceptions(output.read("exception_advice", [last])),
        _what_if(output.read("what_if", [last])),
        _hours(output.read("hourly", window)),
    )
    since = min([output.first_day, *(output.days("hourly") or output.days("tier_outcomes"))])
    left_out = {rows[0]._meta.model_name: count for rows, count in tables if count}
    return Rows(max(since, window[0]), [rows for rows, _count in tables], left_out)


_Some = tuple[list[Any], int]


def _curves(table: pa.Table) -> _Some:
    """Return the curves of the tasks and errors with the most episodes, and the number of others."""
    import pyarrow as pa
    from pyarrow import compute

    all_of_them = table.group_by(["scope", "name"]).aggregate([("episodes", "max"), ("censored", "max")]).to_pylist()
    rows = []
    for scope in RecoveryCurve.Scope.values:
        ranked = sorted(
            (each for each in all_of_them if each["scope"] == scope),
            key=lambda each: (-_whole(each["episodes_max"]), str(each["name"])),
        )
        for each in ranked[:CURVES]:
            own = compute.and_(
                compute.equal(table["scope"], scope), compute.equal(table["name"], pa.scalar(each["name"], pa.string()))
            )
            rows.append(
                RecoveryCurve(
                    scope=scope,
                    name=_name(each["name"]),
                    episodes=_whole(each["episodes_max"]),
                    censored=_whole(each["censored_max"]),
                    points=_points(table.filter(own).sort_by("t_seconds").to_pylist()),
                )
            )
    return rows, len(all_of_them) - len(rows)


def _points(rows: list[dict[str, Any]]) -> list[list[float | None]]:
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
    ranked = sorted(
        of_tiers(summed.to_pylist(), by), key=lambda row: (-_whole(row["parked_sum"]), *(str(row[name]) for name in by))
    )
    kept = ranked[:OUTCOMES]
    first = {tuple(row[name] for name in by[:3]): place for place, row in reversed(list(enumerate(kept)))}
    kept.sort(key=lambda row: (first[tuple(row[name] for name in by[:3])], row["tier"] or 0, row["delay_ms"] or 0))
    rows = [
        TierOutcome(
            task=_name(row["task"]),
            queue=_name(row["queue"]),
            exception_type=_name(row["exception_type"]),
            tier=row["tier"],
            delay_ms=row["delay_ms"],
            independent=_number(row["independent_sum"]),
            **{name: _whole(row[f"{name}_sum"]) for name in counted},
        )
        for row in kept
    ]
    return rows, len(ranked) - len(rows)


def _incidents(table: pa.Table) -> _Some:
    """Return the incidents with the most failures beyond the usual number, and the number of others."""
    order = [("excess", "descending"), ("started_at", "descending"), ("ended_at", "descending")]
    rows = [
        Incident(
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            queues=_names(row["queues"]),
            tasks=_names(row["tasks"]),
            exceptions=_names(row["exceptions"]),
            peak_per_minute=_whole(row["peak_per_minute"]),
            excess=_whole(row["excess"]),
            failure_rate=_number(row["failure_rate"]),
            usual_rate=_number(row["usual_rate"]),
            tasks_touched=_whole(row["tasks_touched"]),
            recovered_share=_number(row["recovered_share"]),
            wasted_ms=_whole(row["wasted_ms"]),
        )
        for row in table.sort_by(order).slice(0, INCIDENTS).to_pylist()
    ]
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
        _made(
            LadderAdvice,
            "ladder_advice",
            row,
            current=_figures(row, "current_"),
            advised=_figures(row, "advised_"),
            backtest_current=_figures(row, "backtest_current_", BACKTEST_FIGURES),
            backtest_advised=_figures(row, "backtest_advised_", BACKTEST_FIGURES),
        )
        for row in found[:LADDERS]
    ]
    return rows, len(found) - len(rows)


def _exceptions(table: pa.Table) -> _Some:
    """Return the advice per exception: those to give up on by the retries that it saves, then the others."""
    kinds = ExceptionAdvice.Kind.values
    known = [row for row in table.to_pylist() if row["kind"] in kinds]
    known.sort(key=lambda row: (kinds.index(row["kind"]), -_whole(row["retries"]), -_whole(row["failures"]), _key(row)))
    rows = [_made(ExceptionAdvice, "exception_advice", row) for row in known[:EXCEPTIONS]]
    return rows, len(known) - len(rows)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("queue", "task", "exception_type"))


def _what_if(table: pa.Table) -> _Some:
    found = table.to_pylist()
    rows = [_made(WhatIf, "what_if", row, figures=_figures(row, "")) for row in found[:LADDERS]]
    return rows, len(found) - len(rows)


def _hours(table: pa.Table) -> _Some:
    counted = ("first_attempts", "failures", "recovered", "exhausted")
    summed = table.group_by("hour").aggregate([(name, "sum") for name in counted]).sort_by("hour")
    rows = [
        InsightHour(hour=row["hour"], **{name: _whole(row[f"{name}_sum"]) for name in counted})
        for row in summed.to_pylist()
    ]
    return rows, 0


def _figures(row: dict[str, Any], prefix: str, names: Iterable[str] = FIGURES) -> dict[str, list[float | None]]:
    """Return figures by name, each with both ends of its interval; a figure without one has two nulls."""
    return {name: [_number(row.get(f"{prefix}{name}{end}")) for end in ENDS] for name in names}


def _made(model: type[models.Model], table: str, row: dict[str, Any], **more: Any) -> Any:
    """Return a row of a model: the columns of a table that have the names of its fields, and ``more``."""
    values = dict(more)
    for field in model._meta.concrete_fields:
        if kind := TABLES[table].get(field.name):
            value = row[field.name]
            values[field.name] = None if value is None and field.null else _STORED[kind](value)
    return model(**values)


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


#: The values of the kinds of columns as a database can store them.
_STORED: Mapping[Kind, Callable[[Any], Any]] = {
    "text": _name, "names": _names, "delays": _delays, "whole": _whole, "number": _number, "flag": bool,
}  # fmt: skip
