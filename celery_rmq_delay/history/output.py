"""The output of the analytics: which run it shows, and in which folders the tables are.

A run writes below ``runs/<run>/`` and changes no table there later. Its ``manifest.json`` lists for each table which
days are in the folder of which run, and ``current.json`` names the run to read: replacing this one small file publishes
a run. A reader that has read both files sees the tables of one run, even while another run is published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..exceptions import OutputError
from .tables import day_folder
from .url import scheme_of, shown, without_secrets

CURRENT, RUNS, MANIFEST, REPORT = "current.json", "runs", "manifest.json", "report.json"
#: The version of the layout. A reader refuses a newer one.
VERSION = 1

_RUN = re.compile(r"\w+(?:-\w+)*")
_TABLE = re.compile(r"[a-z_]+")


@dataclass(frozen=True)
class Manifest:
    """The tables that a run shows: for each table and day, the run whose folder has the files."""

    run: str = ""
    tables: Mapping[str, Mapping[date, str]] = field(default_factory=dict)

    def folders(self, table: str, days: Container[date] | None = None) -> dict[date, str]:
        """Return the folders of a table's days, by day, relative to the output; ``days`` None: all of them."""
        found = sorted(self.tables.get(table, {}).items())
        return {day: folder_of(run, table, day) for day, run in found if days is None or day in days}

    def used(self) -> set[tuple[str, str, date]]:
        """Return the run, the table and the day of every folder."""
        return {(run, table, day) for table, days in self.tables.items() for day, run in days.items()}

    def replaced(self, run: str, written: Mapping[str, tuple[Container[date], Iterable[date]]]) -> Manifest:
        """Return the tables after a run: by table, the days that it replaces, and those of them that have rows."""
        tables = {table: dict(days) for table, days in self.tables.items()}
        for table, (days, with_rows) in written.items():
            kept = {day: earlier for day, earlier in tables.get(table, {}).items() if day not in days}
            tables[table] = kept | dict.fromkeys(with_rows, run)
        return Manifest(run, tables)

    def text(self) -> str:
        """Return the content of the file."""
        tables: dict[str, dict[str, list[str]]] = {}
        for table, days in sorted(self.tables.items()):
            tables[table] = {}
            for day, run in sorted(days.items()):
                tables[table].setdefault(run, []).append(day.isoformat())
        return json.dumps({"version": VERSION, "run": self.run, "tables": tables}, indent=1)

    @classmethod
    def parse(cls, text: str | bytes, where: str, run: str) -> Manifest:
        """Return the manifest of a run from its file. Raises `OutputError`, which names ``where``."""
        with _parsed(text, where) as found:
            if found["run"] != run:
                raise ValueError(f"found the run {found['run']!r}")
            return cls(run, {_named(table, _TABLE): _days(runs) for table, runs in found["tables"].items()})


@dataclass(frozen=True)
class Current:
    """The run that an output shows, and those that it showed before, with the time when each was replaced (UTC)."""

    run: str
    earlier: Mapping[str, datetime] = field(default_factory=dict)

    def text(self) -> str:
        """Return the content of the file."""
        earlier = {run: replaced.isoformat() for run, replaced in self.earlier.items()}
        return json.dumps({"version": VERSION, "run": self.run, "earlier": earlier}, indent=1)

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Current:
        """Return the content of a file. Raises `OutputError`, which names ``where``."""
        with _parsed(text, where) as found:
            earlier = {_named(run, _RUN): _time(at) for run, at in found["earlier"].items()}
            return cls(_named(found["run"], _RUN), earlier)


@dataclass(frozen=True)
class Tables:
    """The files of an output, in a file system of PyArrow."""

    url: str
    manifest: Manifest
    filesystem: Any
    _root: str

    def report(self, run: str) -> dict[str, Any]:
        """Return the report of a run. Raises `OutputError`."""
        where = f"{self._root}/{report_of(run)}"
        return parse_report(_read(self.filesystem, where), where)

    def files(self, table: str, day: date) -> list[str]:
        """Return the files of a day, as paths in the file system; none if its folder was removed."""
        from pyarrow import fs

        folder = self.manifest.folders(table, (day,)).get(day)
        if folder is None:
            return []
        found = self.filesystem.get_file_info(fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        return sorted(each.path for each in found if each.is_file and not each.base_name.startswith((".", "_")))


def open_tables(output: str) -> Tables:
    """Return the tables under a path, or a URL that ``pyarrow.fs`` supports.

    Raises `OutputError` if no run has been published there or a file is damaged, and ``pyarrow.ArrowException`` or
    `OSError` as the file system does.
    """
    filesystem, root = open_folder(output)
    where = f"{root}/{CURRENT}"
    try:
        run = Current.parse(_read(filesystem, where), where).run
    except FileNotFoundError:
        raise OutputError(f"{shown(output)}: has no {CURRENT}, so no run has been published there.") from None
    where = f"{root}/{manifest_of(run)}"
    try:
        return Tables(output, Manifest.parse(_read(filesystem, where), where, run), filesystem, root)
    except FileNotFoundError:
        raise lost_manifest(where) from None


def open_folder(url: str) -> tuple[Any, str]:
    """Return PyArrow's file system of a path or URL, and the folder in it without a final slash. Raises its errors."""
    from pyarrow import fs

    local = _local(url)
    filesystem, root = fs.FileSystem.from_uri(url.strip() if local is None else str(local.absolute()))
    return filesystem, root.rstrip("/")


def table_files(output: str, table: str, first: date = date.min, last: date = date.max) -> list[str]:
    """Return the files of a table, for DuckDB, pandas, Polars or PyArrow.

    ``output`` is the ``--output`` of a run; the days from ``first`` to ``last`` (UTC) are included. On a disk the
    files are absolute paths, elsewhere URLs without keys. A file's day is in its path (``day=2026-01-31``).
    Files remain readable for ``--keep-runs`` after another run was published. Raises `OutputError` if the output cannot
    be read, or has no such table.
    """
    pyarrow = arrow()
    try:
        tables = open_tables(output)
        if table not in tables.manifest.tables:
            found = ", ".join(sorted(tables.manifest.tables))
            raise OutputError(f"{shown(output)}: has no table {table!r}. Its tables: {found}.")
        days = [day for day in sorted(tables.manifest.tables[table]) if first <= day <= last]
        start = "" if _local(output) is not None else f"{scheme_of(output.strip())}://"
        return [f"{start}{path}" for day in days for path in tables.files(table, day)]
    except (pyarrow.ArrowException, OSError) as error:
        raise OutputError(f"{shown(output)}: cannot be read: {without_secrets(str(error), output)}") from error


def arrow() -> Any:
    """Return the module of PyArrow. Raises `OutputError` if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise OutputError(
            "Tables are read with PyArrow, which is not installed: run pip install 'celery-rmq-delay[history]'."
        ) from error
    return pyarrow


def folder_of(run: str, table: str, day: date) -> str:
    """Return the folder of a table's day, relative to the output."""
    return f"{RUNS}/{run}/{table}/{day_folder(day)}"


def manifest_of(run: str) -> str:
    """Return the file with the tables that a run shows, relative to the output."""
    return f"{RUNS}/{run}/{MANIFEST}"


def report_of(run: str) -> str:
    """Return the report of a run, relative to the output."""
    return f"{RUNS}/{run}/{REPORT}"


def parse_report(text: str | bytes, where: str) -> dict[str, Any]:
    """Return the report of a run from its file. Raises `OutputError`, which names ``where``."""
    with _parsed(text, where) as found:
        return dict(found)


def lost_manifest(where: str) -> OutputError:
    """Return the error for a manifest that is missing."""
    return OutputError(f"{where}: is missing. Restore it, or use another output and compute all days again.")


def _local(output: str) -> Path | None:
    """Return the path of an output on a disk of this machine, from a path or a URL; None for other storage."""
    output = output.strip()
    if output.lower().startswith("file:/"):
        return Path(unquote(urlsplit(output).path))
    return None if scheme_of(output) else Path(output)


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def _days(runs: Mapping[str, Iterable[str]]) -> dict[date, str]:
    return {date.fromisoformat(day): _named(run, _RUN) for run in runs for day in runs[run]}


def _named(name: Any, pattern: re.Pattern[str]) -> str:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise ValueError(f"found the name {name!r}")
    return name


@contextmanager
def _parsed(text: str | bytes, where: str) -> Iterator[Any]:
    """Yield the content of a file; what the block cannot read raises `OutputError`."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found.get("version", VERSION) != VERSION:
            raise OutputError(
                f"{where}: found version {found['version']!r}, but this is version {VERSION}. Use the version of"
                " celery-rmq-delay that wrote it, or another output."
            )
        yield found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise OutputError(f"{where}: was not written by the analytics, or was damaged ({error!r}).") from error


def _read(filesystem: Any, path: str) -> bytes:
    with filesystem.open_input_file(path) as file:
        return bytes(file.read())
