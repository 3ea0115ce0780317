"""History files: events as Parquet, each file whole or not there at all. Needs pyarrow.

`collecting.history.open_files` opens them, and says how to get pyarrow where it is missing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from ...exceptions import HistoryError
from ...history.schema import SCHEMA
from ...history.url import shown, without_secrets

#: Where a file appears under its name when it is complete, and only then: these know no rename, and need none.
_OBJECT_STORES = ("s3", "gcs", "abfs")

#: Writes bytes as the file of this name in the folder of a day.
_Put = Callable[[str, str, Any], None]


def table_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a `pyarrow.Table`; keys are names of columns. Raises `pyarrow.ArrowException` for wrong values."""
    return pa.Table.from_pydict({name: [row[name] for row in rows] for name in SCHEMA.names}, SCHEMA)


class HistoryFiles:
    """The files under a URL. The file system is opened by the first write, and again after an error."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._put: _Put | None = None
        #: What was written so far.
        self.files = self.rows = 0

    def write(self, day: str, tables: Sequence[Any], prefix: str = "part") -> None:
        """Write tables as one file into the folder ``day``; it is safe when this returns.

        Raises `HistoryError`; then no part of it is to be seen, but on an object store that did not answer.
        """
        with self._errors():
            table = pa.concat_tables(tables)
            sink = pa.BufferOutputStream()
            pyarrow.parquet.write_table(table, sink, compression="zstd")
            self._put = self._put or _opened(self._url)
            self._put(day, f"{prefix}-{uuid.uuid4()}.parquet", sink.getvalue())
        self.files += 1
        self.rows += table.num_rows

    def has_others(self, day: str, prefix: str) -> bool:
        """Return whether ``day`` has files whose names do not begin with ``prefix``. Raises `HistoryError`."""
        with self._errors():
            filesystem, root = pyarrow.fs.FileSystem.from_uri(self._url)
            found = filesystem.get_file_info(pyarrow.fs.FileSelector(f"{root}/{day}", allow_not_found=True))
        return any(not each.base_name.startswith((prefix, ".", "_")) for each in found)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            self._put = None
            text = without_secrets(f"{type(error).__name__}: {error}", self._url)
            raise HistoryError(f"History files cannot be written to {shown(self._url)}: {text}") from None


def _opened(url: str) -> _Put:
    filesystem, root = pyarrow.fs.FileSystem.from_uri(url)
    if filesystem.type_name == "local":
        return _Local(Path(root)).put
    return _Remote(filesystem, root).put


class _Local:
    """Files on a disk: a file is on it, under its name, before anybody is told so."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: set[str] = set()

    def put(self, day: str, name: str, data: Any) -> None:
        if not self._root.is_dir():
            # Not made: where a disk is not mounted, files would go to another one.
            raise FileNotFoundError("there is no such folder: create it, or mount what is to be there")
        folder = self._root / day
        if day not in self._known:
            folder.mkdir(exist_ok=True)
            _sync(self._root)
            self._known.add(day)
        temporary = folder / _temporary(name)
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(folder / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync(folder)


class _Remote:
    """Files on a file system of pyarrow's: renamed when they are complete, where that is not how they come about."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem, self._root = filesystem, root.rstrip("/")
        self._is_object_store = filesystem.type_name in _OBJECT_STORES

    def put(self, day: str, name: str, data: Any) -> None:
        folder = f"{self._root}/{day}"
        if self._is_object_store:
            self._write(f"{folder}/{name}", data)
            return
        temporary = f"{folder}/{_temporary(name)}"
        self._filesystem.create_dir(folder, recursive=True)
        try:
            self._write(temporary, data)
            self._filesystem.move(temporary, f"{folder}/{name}")
        except BaseException:
            with suppress(OSError, pa.ArrowException):
                self._filesystem.delete_file(temporary)
            raise

    def _write(self, path: str, data: Any) -> None:
        # A `with` would complete the file after an error, too.
        stream = self._filesystem.open_output_stream(path)
        stream.write(data)
        stream.close()


def _temporary(name: str) -> str:
    """Return the name of a file that is not complete: one that readers pass over."""
    return f".{name}.tmp"


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
