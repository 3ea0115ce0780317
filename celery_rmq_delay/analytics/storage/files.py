"""Access folders and files in any storage of Spark: Hadoop's ``FileSystem``, called through the session's JVM.

Spark's reads and writes use the same way, so that one set of credentials and settings serves both. On a local disk
there are exact locks, files that are replaced at once, and no Java for small files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyspark
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from ..session import is_local
from .addresses import address_of, connector_hint

_Result = TypeVar("_Result")

#: Storage where a file appears when its writer closes it, and replaces the one of the same name at once.
_OBJECT_STORES = {"s3a", "s3", "s3n", "gs"}


@dataclass(frozen=True)
class Entry:
    """A file or a folder. ``modified_ms`` is since the epoch."""

    path: str
    name: str
    size: int
    is_folder: bool
    modified_ms: int

    @property
    def hidden(self) -> bool:
        """Whether readers ignore the file because of its name, as Spark and pyarrow do."""
        return self.name.startswith((".", "_"))


def parent_of(path: str) -> str:
    """Return the folder that a file is in."""
    return path.rpartition("/")[0]


class Storage:
    """The file system of a URL (`open_storage`). Methods raise `AnalyticsError` with the path and its error.

    Keys and endpoints in the URL are set in the session, also for Spark's reads and writes; ``url`` is without them.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        address = address_of(url)
        self.url = address.url
        self._jvm: Any = spark._jvm
        context: Any = spark.sparkContext
        self._gateway = context._gateway
        # Set here, they appear neither in Java's command line nor in the settings that Spark shows.
        for name, value in address.settings.items():
            context._jsc.hadoopConfiguration().set(name, value)
        with hadoop_errors(self.url):
            self._files = self._path(self.url).getFileSystem(hadoop_configuration(spark))
            self.scheme = str(self._files.getUri().getScheme())
            if self.scheme == "file":
                self.url = str(self._files.makeQualified(self._path(self.url)).toString())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def find(self, path: str) -> Entry | None:
        """Return the file or folder of this name, or None."""
        return _if_present(path, lambda: _entry(self._files.getFileStatus(self._path(path))))

    def entries(self, path: str) -> list[Entry]:
        """Return the entries of a folder by name, hidden names included; an empty list if there is no such folder."""
        found = _if_present(path, lambda: [_entry(each) for each in self._files.listStatus(self._path(path))])
        return sorted(found or (), key=lambda entry: entry.name)

    def folders(self, path: str) -> list[Entry]:
        """Return the subfolders of a folder that are not hidden."""
        return [entry for entry in self.entries(path) if entry.is_folder and not entry.hidden]

    def files(self, path: str) -> list[Entry]:
        """Return the files of a folder that are not hidden."""
        return [entry for entry in self.entries(path) if not entry.is_folder and not entry.hidden]

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""
        with hadoop_errors(path):
            self._files.mkdirs(self._path(path))

    def rename(self, source: str, target: str) -> None:
        """Move a file to a name that is free, in a folder that exists."""
        with hadoop_errors(source):
            if not self._files.rename(self._path(source), self._path(target)):
                raise AnalyticsError(f"{source}: could not be renamed to {target}. Check that you may write there.")

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its contents; does nothing if it does not exist."""
        with hadoop_errors(path):
            self._files.delete(self._path(path), True)

    def read(self, path: str) -> str | None:
        """Return the text of a small file, or None if there is none."""
        stream = _if_present(path, lambda: self._files.open(self._path(path)))
        if stream is None:
            return None
        with hadoop_errors(path):
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode(errors="replace")
            finally:
                stream.close()

    def write(self, path: str, text: str, *, replace: bool = True) -> bool:
        """Write a small file at once, so that no reader sees a part; False if it exists and ``replace`` is false."""
        if not replace or self.scheme in _OBJECT_STORES:
            return self._create(path, text, replace=replace)
        unfinished = f"{parent_of(path)}/_{path.rpartition('/')[2]}.{uuid4().hex}"
        self._create(unfinished, text)
        with hadoop_errors(path):
            hadoop = self._jvm.org.apache.hadoop.fs
            rename = getattr(hadoop, "Options$Rename")
            options = self._gateway.new_array(rename, 1)
            options[0] = rename.OVERWRITE
            context = hadoop.FileContext.getFileContext(self._files.getUri(), self._files.getConf())
            context.rename(self._path(unfinished), self._path(path), options)
        return True

    def _create(self, path: str, text: str, *, replace: bool = True) -> bool:
        with hadoop_errors(path):
            try:
                stream = self._files.create(self._path(path), replace)
            except Py4JJavaError as error:
                if not replace and is_a(error, "FileAlreadyExistsException"):
                    return False
                raise
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
            return True

    def flush(self, paths: Iterable[str]) -> None:
        """Make files and folders survive a power failure; does nothing where the storage does so by itself."""

    @contextmanager
    def alone(self, folder: str) -> Iterator[bool]:
        """Let only one process into the block, and yield True; yield False where the storage cannot do that."""
        yield False


def local_path(url: str) -> str | None:
    """Return the local path of a Hadoop URL such as ``file:/a b``, as `Entry.path` has it; None for other storage."""
    return url.removeprefix("file:") if url.startswith("file:/") else None


def shared_folder(spark: SparkSession, url: str) -> Path | None:
    """Return the path of a folder on a local disk if Spark runs on this machine only: its workers open it directly."""
    path = local_path(url) if is_local(spark) else None
    return None if path is None else Path(path)


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return the session's Hadoop configuration, with the ``spark.hadoop.*`` settings."""
    session: Any = spark
    return session._jsparkSession.sessionState().newHadoopConf()


def is_a(error: Py4JJavaError, name: str) -> bool:
    """Return whether a Java exception is of the class with this short name."""
    return str(error.java_exception.getClass().getSimpleName()) == name


def java_message(error: Py4JJavaError) -> str:
    """Return the message of a Java exception, in one line."""
    java = error.java_exception
    return " ".join(str(java.getMessage() or java.toString()).split())


@contextmanager
def hadoop_errors(path: str) -> Iterator[None]:
    """Convert Java exceptions of the file system into an `AnalyticsError` that names the path."""
    try:
        yield
    except Py4JJavaError as error:
        found = f"{error.java_exception.getClass().getSimpleName()}: {java_message(error)}"
        raise AnalyticsError(f"{path}: {connector_hint(path, found, pyspark.__version__) or found}") from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise AnalyticsError(f"{path}: cannot be used, as the Java process of Spark has ended.") from error


def _if_present(path: str, call: Callable[[], _Result]) -> _Result | None:
    """Return what a call of Hadoop returns; None if there is no such file or folder."""
    with hadoop_errors(path):
        try:
            return call()
        except Py4JJavaError as error:
            if is_a(error, "FileNotFoundException"):
                return None
            raise


def _entry(status: Any) -> Entry:
    path = status.getPath()
    return Entry(
        path.toString(), path.getName(), status.getLen(), bool(status.isDirectory()), status.getModificationTime()
    )


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
        if (found := _if_there(path, Path.stat)) is None:
            return None
        is_folder = stat.S_ISDIR(found.st_mode)
        return Entry(path, path.rpartition("/")[2], found.st_size, is_folder, found.st_mtime_ns // 1_000_000)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents."""
        with system_errors(path):
            _local(path).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its contents; does nothing if it does not exist."""
        _if_there(path, lambda file: (shutil.rmtree if file.is_dir() and not file.is_symlink() else os.unlink)(file))

    def read(self, path: str) -> str | None:
        """Return the text of a small file, or None if there is none."""
        return _if_there(path, lambda file: file.read_text(errors="replace"))

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


def _if_there(path: str, call: Callable[[Path], _Result]) -> _Result | None:
    with system_errors(path), suppress(FileNotFoundError):
        return call(_local(path))
    return None


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
    """Lock an open folder until it is closed; False: its file system has no locks. Raises if another one keeps it."""
    deadline = time.monotonic() + _MOMENTS
    try:
        while time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.02)
    except OSError:
        return False
    raise AnalyticsError(
        f"{folder}: another run has locked this folder for {_MOMENTS:.0f} s and may be suspended. End it, or wait."
    )


@contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Convert errors of a local disk into an `AnalyticsError` that names the path."""
    try:
        yield
    except OSError as error:
        raise AnalyticsError(f"{path}: {error.strerror or error}") from error
