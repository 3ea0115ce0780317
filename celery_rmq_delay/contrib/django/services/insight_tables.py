"""Reads and checks the Parquet tables of a finished run of the analytics. No database, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from ....exceptions import OutputError
from ....history import tables
from ....history.output import Tables, arrow, open_tables
from ....history.tables import Kind
from ....history.url import shown, without_secrets

if TYPE_CHECKING:
    import pyarrow as pa

#: The tables that the page shows, each with the columns that the page does not need.
_SHOWN: Mapping[str, Sequence[str]] = {
    "recovery_curve": (),
    "tier_outcomes": ("rate", "rate_low", "rate_high"),
    "incidents": ("failures",),
    "ladder_advice": ("by_attempts_low",),
    "exception_advice": (),
    "what_if": (),
    "hourly": ("queue", "task", "parked"),
}
#: The columns that the page needs, by table.
TABLES: Mapping[str, Mapping[str, Kind]] = {
    table: {name: kind for name, kind in tables.TABLES[table].items() if name not in unused}
    for table, unused in _SHOWN.items()
}

#: The kinds of columns in words, and the tests of `pyarrow.types` of which one is true; for lists, of their values.
_KINDS: Mapping[Kind, tuple[str, tuple[str, ...]]] = {
    "text": ("text", ("is_string", "is_large_string")),
    "int32": ("a whole number", ("is_integer",)),
    "int64": ("a whole number", ("is_integer",)),
    "float64": ("a number", ("is_floating", "is_integer")),
    "flag": ("true or false", ("is_boolean",)),
    "time": ("a timestamp", ("is_timestamp",)),
    "delays": ("a list of whole numbers", ("is_integer",)),
    "names": ("a list of texts", ("is_string", "is_large_string")),
}
_COMMANDS = "`python -m celery_rmq_delay.analytics run`, or `manage.py rmq_delay_insights` without --load-only."
_HOW = f"Run {_COMMANDS}"


@dataclass(frozen=True)
class Output:
    """The output of the analytics under a URL or a path."""

    url: str
    #: The days of the run that wrote the newest day of any table.
    first_day: date
    last_day: date
    #: The report of this run.
    report: Mapping[str, Any]
    _tables: Tables

    def days(self, table: str) -> list[date]:
        """Return the days for which a table has rows, in order."""
        return sorted(self._tables.manifest.tables.get(table, {}))

    def read(self, table: str, days: Iterable[date]) -> pa.Table:
        """Return a table's rows of some days, in the columns of `TABLES`. Raises `OutputError`."""
        import pyarrow

        from ....history.schema import schema_of

        schema = schema_of(TABLES[table])
        try:
            paths = [path for day in days for path in self._files(table, day)]
        except (pyarrow.ArrowException, OSError) as error:
            raise _not_opened(self.url, error) from error
        parts = [self._read_file(table, path, schema) for path in paths]
        return pyarrow.concat_tables(parts) if parts else schema.empty_table()

    def _files(self, table: str, day: date) -> list[str]:
        found = self._tables.files(table, day)
        if not found and day in self.days(table) and self.first_day <= day <= self.last_day:
            raise OutputError(f"The table {table!r} of {day} is missing in {shown(self.url)}. {_HOW}")
        return found

    def _read_file(self, table: str, path: str, schema: pa.Schema) -> pa.Table:
        import pyarrow
        from pyarrow import compute, parquet

        try:
            with self._tables.filesystem.open_input_file(path) as file:
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
    pyarrow = arrow()
    try:
        tables = open_tables(url)
        run = _newest_run(tables)
        report = tables.report(run)
    except (pyarrow.ArrowException, OSError) as error:
        raise _not_opened(url, error) from error
    except OutputError as error:
        raise OutputError(f"{error} {_HOW}") from error
    where = f"The report of the run {run} in {shown(url)}"
    try:
        first, last = (date.fromisoformat(report[name]) for name in ("first_day", "last_day"))
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(f"{where} is damaged: its days are not dates. {_HOW}") from error
    return Output(url, first, last, report, tables)


def _newest_run(tables: Tables) -> str:
    newest = max(
        ((day, run) for table in TABLES for day, run in tables.manifest.tables.get(table, {}).items()), default=None
    )
    return newest[1] if newest else tables.manifest.run


def _not_opened(url: str, error: Exception) -> OutputError:
    text = without_secrets(str(error), url)
    return OutputError(f"The output {shown(url)} cannot be opened: {text}. Check address and credentials.")


def _check(table: str, path: str, schema: pa.Schema) -> None:
    for name, kind in TABLES[table].items():
        index = schema.get_field_index(name)
        if index < 0:
            raise OutputError(
                f"The table {table!r} has no column {name!r} in {path}: an older version of the analytics may have "
                f"written it. Compute all days up to now again, with --from: {_COMMANDS}"
            )
        if not _fits(kind, schema.field(index).type):
            found, wanted = schema.field(index).type, _KINDS[kind][0]
            raise OutputError(f"Column {name!r} of the table {table!r} is {found} in {path}, not {wanted}. {_HOW}")


def _fits(kind: Kind, found: pa.DataType) -> bool:
    from pyarrow import types

    if kind in ("delays", "names"):
        if not (types.is_list(found) or types.is_large_list(found)):
            return False
        found = found.value_type
    return any(getattr(types, test)(found) for test in _KINDS[kind][1])
