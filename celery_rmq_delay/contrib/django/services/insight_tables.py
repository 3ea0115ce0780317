"""Reads and checks the Parquet tables of a finished run of the analytics. No database, no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ....exceptions import OutputError
from ....history.url import shown, without_secrets

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["text", "whole", "number", "flag", "time", "delays", "names"]

#: The figures of a ladder, each with its interval in ``_low`` and ``_high``.
FIGURES = ("recovery", "attempts", "mean_s", "p25_s", "median_s", "p75_s", "p95_s", "p99_s", "exhausted")
ENDS = ("", "_low", "_high")
#: The figures of a ladder in its backtest, without intervals.
BACKTEST_FIGURES = ("recovery", "attempts", "mean_s", "p95_s", "exhausted")


def _figures(prefix: str) -> dict[str, Kind]:
    return {f"{prefix}{name}{end}": "number" for name in FIGURES for end in ENDS}


#: The tables that the page shows, and the columns that it needs.
TABLES: Mapping[str, Mapping[str, Kind]] = {
    "recovery_curve": {
        "scope": "text", "name": "text", "t_seconds": "number", "recovered_share": "number", "share_low": "number",
        "share_high": "number", "episodes": "whole", "censored": "whole",
    },
    "tier_outcomes": {
        "task": "text", "queue": "text", "exception_type": "text", "tier": "whole", "delay_ms": "whole",
        "parked": "whole", "recovered": "whole", "exhausted": "whole", "wasted_ms": "whole",
    },
    "incidents": {
        "started_at": "time", "ended_at": "time", "queues": "names", "tasks": "names", "exceptions": "names",
        "peak_per_minute": "whole", "excess": "whole", "failure_rate": "number", "usual_rate": "number",
        "tasks_touched": "whole", "recovered_share": "number", "wasted_ms": "whole",
    },
    "ladder_advice": {
        "queue": "text", "task": "text", "enough_data": "flag", "reason": "text", "learn": "text", "episodes": "whole",
        "recoveries": "whole", "current_ms": "delays", "advised_ms": "delays", "refused_ms": "delays", "lost": "whole",
        "counted": "whole", **_figures("current_"), **_figures("advised_"), "backtest_failures": "whole",
        **{f"backtest_{which}_{name}": "number" for which in ("current", "advised") for name in BACKTEST_FIGURES},
    },
    "exception_advice": {
        "queue": "text", "task": "text", "exception_type": "text", "kind": "text", "failures": "whole",
        "recovered": "whole", "share_low": "number", "share_high": "number", "longest_s": "number",
        "needless_ms": "delays", "retries": "whole", "wasted_ms": "whole",
    },
    "what_if": {
        "queue": "text", "ladder_ms": "delays", "enough_data": "flag", "reason": "text", "episodes": "whole",
        **_figures(""),
    },
    "hourly": {
        "hour": "time", "first_attempts": "whole", "failures": "whole", "recovered": "whole", "exhausted": "whole",
    },
}  # fmt: skip

_IN_WORDS: Mapping[Kind, str] = {
    "text": "text",
    "whole": "a whole number",
    "number": "a number",
    "flag": "true or false",
    "time": "a timestamp",
    "delays": "a list of whole numbers",
    "names": "a list of texts",
}
#: The folder of the reports of finished runs.
RUNS = "runs"
_DAY = re.compile(r"/day=(\d{4}-\d{2}-\d{2})/")
_COMMANDS = "`python -m celery_rmq_delay.analytics run`, or `manage.py rmq_delay_insights` without --load-only."
_HOW = f"Run {_COMMANDS}"


@dataclass(frozen=True)
class Output:
    """The output of the analytics under a URL or a path: the files of its tables by day."""

    url: str
    #: The days of the last run about the newest day that any table has.
    first_day: date
    last_day: date
    #: The report of this run.
    report: Mapping[str, Any]
    _filesystem: Any
    _files: Mapping[str, Mapping[date, list[str]]]

    def days(self, table: str) -> list[date]:
        """Return the days for which a table has rows, in order."""
        return sorted(self._files[table])

    def read(self, table: str, days: Iterable[date]) -> pa.Table:
        """Return a table's rows of some days, in the columns of `TABLES`. Raises `OutputError`."""
        import pyarrow

        schema = _schema(TABLES[table])
        parts = [
            self._read_file(table, path, schema) for day in days for path in sorted(self._files[table].get(day, ()))
        ]
        return pyarrow.concat_tables(parts) if parts else schema.empty_table()

    def _read_file(self, table: str, path: str, schema: pa.Schema) -> pa.Table:
        import pyarrow
        from pyarrow import compute, parquet

        try:
            with self._filesystem.open_input_file(path) as file:
                opened = parquet.ParquetFile(file)
                _check(table, path, opened.schema_arrow)
                found = opened.read(columns=list(TABLES[table]))
            columns = [compute.cast(found[field.name], field.type, safe=False) for field in schema]
        except (pyarrow.ArrowException, OSError) as error:
            raise OutputError(f"{path} of the table {table!r} cannot be read: {error}. {_HOW}") from error
        for name, column in zip(schema.names, columns, strict=True):
            if TABLES[table][name] == "time" and column.null_count:
                raise OutputError(f"Column {name!r} of the table {table!r} is null in a row of {path}. {_HOW}")
        return pyarrow.Table.from_arrays(columns, schema=schema)


def open_output(url: str) -> Output:
    """Open the output under a path, or a URL that ``pyarrow.fs`` supports. Raises `OutputError`."""
    try:
        import pyarrow
        from pyarrow import fs
    except ImportError as error:
        raise OutputError(
            "Insights need PyArrow, which is not installed: run pip install 'celery-rmq-delay[history]'."
        ) from error
    try:
        filesystem, root = fs.FileSystem.from_uri(url if "://" in url else str(Path(url).absolute()))
        root = root.rstrip("/")
        runs = _finished_runs(filesystem, root, url)
        latest = next(runs)
        files = {table: _files_of(filesystem, f"{root}/{table}") for table in TABLES}
        newest = max((day for days in files.values() for day in days), default=latest.last)
        run = next((each for each in chain([latest], runs) if each.first <= newest <= each.last), latest)
    except (pyarrow.ArrowException, OSError) as error:
        text = without_secrets(str(error), url)
        raise OutputError(
            f"The output {shown(url)} cannot be opened: {text}. Check address and credentials."
        ) from error
    for table, days in files.items():
        if latest.report["tables"].get(table) and not any(latest.first <= day <= latest.last for day in days):
            raise OutputError(f"The table {table!r} is missing in {shown(url)}, but the last run wrote it. {_HOW}")
    return Output(url, run.first, run.last, run.report, filesystem, files)


@dataclass(frozen=True)
class _Run:
    """A finished run: its days and its report."""

    first: date
    last: date
    report: Mapping[str, Any]


def _finished_runs(filesystem: Any, root: str, url: str) -> Iterator[_Run]:
    """Yield the runs that have days, the newest first: at least one. Raises `OutputError`."""
    names = sorted((path for path in _list(filesystem, f"{root}/{RUNS}") if path.endswith(".json")), reverse=True)
    if not names:
        raise OutputError(f"There is no finished run in {shown(url)}: {RUNS}/ has no reports. {_HOW}")
    known = False
    for name in names:
        report = _report(filesystem, name)
        if report.get("first_day") and report.get("last_day"):
            known = True
            try:
                yield _Run(date.fromisoformat(report["first_day"]), date.fromisoformat(report["last_day"]), report)
            except (TypeError, ValueError) as error:
                raise OutputError(f"{name} is not a report of a run: its days are not dates. {_HOW}") from error
    if not known:
        raise OutputError(
            f"The runs in {shown(url)} have no days: the history had no events of the requested days. "
            "Wait until the collector has written events, or select other days with --from and --to."
        )


def _report(filesystem: Any, name: str) -> dict[str, Any]:
    """Return the report of a finished run."""
    with filesystem.open_input_file(name) as file:
        try:
            report = json.loads(file.read())
        except ValueError as error:
            raise OutputError(f"{name} is not a report of a run: {error}. {_HOW}") from error
    if not isinstance(report, dict) or not isinstance(report.get("tables"), dict):
        raise OutputError(f"{name} is not a report of a run: it does not list the tables. {_HOW}")
    return report


def _files_of(filesystem: Any, folder: str) -> dict[date, list[str]]:
    found: dict[date, list[str]] = {}
    for path in _list(filesystem, folder):
        day = _DAY.match(path[len(folder) :])
        if day and not path.rpartition("/")[2].startswith(("_", ".")):
            found.setdefault(date.fromisoformat(day[1]), []).append(path)
    return found


def _list(filesystem: Any, folder: str) -> list[str]:
    """Return the files of a folder that may be missing."""
    from pyarrow import fs

    infos = filesystem.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    return [info.path for info in infos if info.type == fs.FileType.File]


def _schema(columns: Mapping[str, Kind]) -> pa.Schema:
    import pyarrow as pa

    types: dict[Kind, Any] = {
        "text": pa.string(),
        "whole": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("us", "UTC"),
        "delays": pa.list_(pa.int64()),
        "names": pa.list_(pa.string()),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _check(table: str, path: str, schema: pa.Schema) -> None:
    """Raise `OutputError` where a file lacks a column, or has one of a wrong type."""
    for name, kind in TABLES[table].items():
        index = schema.get_field_index(name)
        if index < 0:
            raise OutputError(
                f"The table {table!r} has no column {name!r} in {path}: an older version of the analytics may have "
                f"written it. Compute all days up to now again, with --from: {_COMMANDS}"
            )
        if not _fits(kind, schema.field(index).type):
            found, wanted = schema.field(index).type, _IN_WORDS[kind]
            raise OutputError(f"Column {name!r} of the table {table!r} is {found} in {path}, not {wanted}. {_HOW}")


def _fits(kind: Kind, found: pa.DataType) -> bool:
    from pyarrow import types

    def is_text(each: pa.DataType) -> bool:
        return bool(types.is_string(each) or types.is_large_string(each))

    if kind in ("delays", "names"):
        fits = types.is_integer if kind == "delays" else is_text
        return bool((types.is_list(found) or types.is_large_list(found)) and fits(found.value_type))
    tests: dict[Kind, Callable[[pa.DataType], bool]] = {
        "text": is_text,
        "whole": types.is_integer,
        "number": lambda each: types.is_floating(each) or types.is_integer(each),
        "flag": types.is_boolean,
        "time": types.is_timestamp,
    }
    return bool(tests[kind](found))
