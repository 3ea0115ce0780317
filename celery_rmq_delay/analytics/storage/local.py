"""Storage on a disk of this machine: exact locks, files that are replaced at once, and no Java for small files."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from .files import Entry, Storage, local_path

#: Seconds to wait for a process that takes, renews or removes the lock of a run, or publishes.
_MOMENTS = 20.0


def open_storage(spark: SparkSession, url: str) -> Storage:
    """Return the storage of a URL or a path. Raises `AnalyticsError` if Hadoop has no file system for it."""
    storage = Storage(spark, url)
    return LocalStorage(spark, url) if storage.scheme == "file" else storage


class LocalStorage(Storage):
    """A local disk. Small files and locks work even when Java has ended."""

    def find(self, path: str) -> Entry | None:
        """Return the file or folder of this name, or None."""
        with system_errors(path):
            try:
                found = _local(path).stat()
            except FileNotFoundError:
                return None
            is_folder = stat.S_ISDIR(found.st_mode)
            return Entry(path, path.rpartition("/")[2], found.st_size, is_folder, found.st_mtime_ns // 1_000_000)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""
        with system_errors(path):
            _local(path).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its contents; does nothing if it does not exist."""
        local = _local(path)
        with system_errors(path):
            try:
                if local.is_dir() and not local.is_symlink():
                    shutil.rmtree(local)
                else:
                    local.unlink()
            except FileNotFoundError:
                pass

    def read(self, path: str) -> str | None:
        """Return the text of a small file, or None if there is none."""
        with system_errors(path):
            try:
                return _local(path).read_text(errors="replace")
            except FileNotFoundError:
                return None

    def write(self, path: str, text: str, *, replace: bool = True) -> bool:
        """Write a small file by renaming a complete one; a file that must not exist yet is created, and then filled."""
        local = _local(path)
        with system_errors(path):
            local.parent.mkdir(parents=True, exist_ok=True)
            if replace:
                _replace(local, text)
                return True
            return _create(local, text)

    def flush(self, paths: Iterable[str]) -> None:
        """Make files and folders survive a power failure."""
        for path in paths:
            with system_errors(path):
                _flush(_local(path))

    @contextmanager
    def alone(self, folder: str) -> Iterator[bool]:
        """Let only one process into the block, by a lock of the folder, which ends with the process."""
        with system_errors(folder):
            opened = os.open(_local(folder), os.O_RDONLY)
        try:
            yield _is_locked(opened, folder)
        finally:
            os.close(opened)


def _local(path: str) -> Path:
    return Path(local_path(path) or path)


def _create(path: Path, text: str) -> bool:
    """Write a file; return False if it exists. After an error there is none."""
    try:
        file = path.open("x")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink()
        raise
    return True


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f"_{path.name}.{uuid4().hex}")
    try:
        unfinished.write_text(text)
        _flush(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush(path.parent)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _is_locked(opened: int, folder: str) -> bool:
    """Lock an open folder until it is closed; return False if its file system has no such locks.

    Raises `AnalyticsError` if another process does not release it: it only holds it for moments.
    """
    deadline = time.monotonic() + _MOMENTS
    while time.monotonic() < deadline:
        found = _try_lock(opened)
        if found is not None:
            return found
        time.sleep(0.02)
    raise AnalyticsError(
        f"{folder}: another run has locked this folder for {_MOMENTS:.0f} s and may be suspended. End it, or wait."
    )


def _try_lock(opened: int) -> bool | None:
    """Lock an open folder; return None if another process holds the lock, and False if there are no locks."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        return False
    return True


@contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Convert errors of a local disk into an `AnalyticsError` that names the path."""
    try:
        yield
    except OSError as error:
        raise AnalyticsError(f"{path}: {error.strerror or error}") from error
