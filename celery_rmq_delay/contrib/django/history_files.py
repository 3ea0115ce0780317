"""Writes history files: events as Parquet; incomplete files are never visible. Needs pyarrow.

`collecting.gathering.open_files` opens them, with a hint where pyarrow is missing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from ...exceptions import HistoryError
from ...history.schema import SCHEMA
from ...history.url import shown, without_secrets

#: Stores where a file is visible only when it is complete: they need no rename, and do not support it.
_OBJECT_STORES = ("s3", "gcs", "abfs")

#: Writes bytes as the file of this name in the folder of a day.
_Put = Callable[[str, str, Any], None]


def table_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows, by column name, as a `pyarrow.Table`. Raises `pyarrow.ArrowException` for wrong values."""
    return pa.Table.from_pydict({name: [row[name] for row in rows] for name in SCHEMA.names}, SCHEMA)


class HistoryFiles:
    """The history files under a URL. The file system is opened by the first write, and again after an error."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._put: _Put | None = None
        #: The files and rows that were written so far.
        self.files = self.rows = 0

    def write(self, day: str, tables: Sequence[Any], prefix: str = "part") -> None:
        """Write tables as one file into the folder ``day``; it is stored when this returns.

        Raises `HistoryError`; then the file is not visible, except perhaps on an object store that did not answer.
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
    return partial(_put_local, Path(root)) if filesystem.type_name == "local" else partial(_put, filesystem, root)


def _put_local(root: Path, day: str, name: str, data: Any) -> None:
    """Write a file on a disk; it is synced to it before this returns."""
    if not root.is_dir():
        # Not created: where the disk is not mounted, files would go to another one.
        raise FileNotFoundError("there is no such folder: create it, or mount its disk")
    folder = root / day
    folder.mkdir(exist_ok=True)
    _sync(root)
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


def _put(filesystem: Any, root: str, day: str, name: str, data: Any) -> None:
    """Write a file on a file system of pyarrow; it is renamed when it is complete, except on object stores."""
    folder = f"{root.rstrip('/')}/{day}"
    if filesystem.type_name in _OBJECT_STORES:
        _write(filesystem, f"{folder}/{name}", data)
        return
    temporary = f"{folder}/{_temporary(name)}"
    filesystem.create_dir(folder, recursive=True)
    try:
        _write(filesystem, temporary, data)
        filesystem.move(temporary, f"{folder}/{name}")
    except BaseException:
        with suppress(OSError, pa.ArrowException):
            filesystem.delete_file(temporary)
        raise


def _write(filesystem: Any, path: str, data: Any) -> None:
    # A `with` would complete the file also after an error.
    stream = filesystem.open_output_stream(path)
    stream.write(data)
    stream.close()


def _temporary(name: str) -> str:
    """Return the name of an incomplete file, which readers ignore."""
    return f".{name}.tmp"


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
