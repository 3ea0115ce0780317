"""Folders and files wherever Spark can reach them: Hadoop's ``FileSystem``, called through the session's Java machine.

What Spark reads and writes goes this way, too, so that one set of credentials and settings serves both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from ...exceptions import AnalyticsError
from .addresses import address_of, connector_hint


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
        """Whether the name says that readers are to pass over it, as Spark and pyarrow do."""
        return self.name.startswith((".", "_"))


def parent_of(path: str) -> str:
    """Return the folder that a file is in."""
    return path.rpartition("/")[0]


class Storage:
    """The file system of a URL. Methods raise `AnalyticsError` with the path and what the file system said.

    What the URL says of keys and endpoints is set in the session, for what Spark reads and writes; ``url`` is without.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        address = address_of(url)
        self.url = address.url
        self._jvm: Any = spark._jvm
        context: Any = spark.sparkContext
        # Here they are in no command line of Java, nor in what Spark shows of a session.
        for name, value in address.settings.items():
            context._jsc.hadoopConfiguration().set(name, value)
        with told(self.url):
            self._files = self._path(self.url).getFileSystem(hadoop_configuration(spark))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or a folder."""
        with told(path):
            return bool(self._files.exists(self._path(path)))

    def find(self, path: str) -> Entry | None:
        """Return what is there under this name."""
        with told(path):
            try:
                return _entry(self._files.getFileStatus(self._path(path)))
            except Py4JJavaError as error:
                if is_a(error, "FileNotFoundException"):
                    return None
                raise

    def entries(self, path: str) -> list[Entry]:
        """Return what is in a folder, by name, hidden names included; nothing where there is no such folder."""
        with told(path):
            try:
                found = self._files.listStatus(self._path(path))
            except Py4JJavaError as error:
                if is_a(error, "FileNotFoundException"):
                    return []
                raise
            return sorted((_entry(each) for each in found), key=lambda entry: entry.name)

    def folders(self, path: str) -> list[Entry]:
        """Return the folders in a folder that are not hidden."""
        return [entry for entry in self.entries(path) if entry.is_folder and not entry.hidden]

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        with told(path):
            self._files.mkdirs(self._path(path))

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder to a name that is free; the folder of the new name is made."""
        with told(source):
            self.make_folder(parent_of(target))
            if self.exists(target):  # Hadoop would move a folder into it
                raise AnalyticsError(f"{target}: exists, and {source} was to get this name. Move one of them away.")
            if not self._files.rename(self._path(source), self._path(target)):
                raise AnalyticsError(f"{source}: could not be renamed to {target}. May this user write there?")

    def move_into(self, source: str, target: str) -> None:
        """Let a folder become ``target``, or what is in it part of ``target``: where that is there, file by file.

        Where renaming a folder is copying and deleting, as on object stores, this ends what was begun: a file that
        stands in both folders has been copied, and only has to be deleted in ``source``.
        """
        if not self.exists(target):
            self.rename(source, target)
            return
        copied = {entry.name: entry.size for entry in self.entries(target)}
        for entry in self.entries(source):
            if copied.get(entry.name) == entry.size:
                self.delete(entry.path)
                continue
            if entry.name in copied:
                self.delete(f"{target}/{entry.name}")
            self.rename(entry.path, f"{target}/{entry.name}")
        self.delete(source)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all in it; nothing happens where there is none."""
        with told(path):
            self._files.delete(self._path(path), True)

    def read(self, path: str) -> str:
        """Return the text of a small file."""
        with told(path):
            stream = self._files.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
            finally:
                stream.close()

    def write(self, path: str, text: str, *, replace: bool = True) -> bool:
        """Write a small file; return False where it exists and ``replace`` is not asked for."""
        with told(path):
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

    def write_whole(self, path: str, text: str) -> None:
        """Write a small file so that nobody ever reads a part of it. There must be none of this name."""
        unfinished = f"{parent_of(path)}/_{path.rpartition('/')[2]}.unfinished"
        self.write(unfinished, text)
        self.rename(unfinished, path)


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return the session's Hadoop configuration, with the ``spark.hadoop.*`` settings."""
    session: Any = spark
    return session._jsparkSession.sessionState().newHadoopConf()


def is_a(error: Py4JJavaError, name: str) -> bool:
    """Tell whether a Java exception is of the class with this short name."""
    return str(error.java_exception.getClass().getSimpleName()) == name


def java_message(error: Py4JJavaError) -> str:
    """Return what a Java exception says, in one line."""
    java = error.java_exception
    return " ".join(str(java.getMessage() or java.toString()).split())


@contextmanager
def told(path: str) -> Iterator[None]:
    """Turn what the file system throws into an `AnalyticsError` that names the path."""
    try:
        yield
    except Py4JJavaError as error:
        said = f"{error.java_exception.getClass().getSimpleName()}: {java_message(error)}"
        raise AnalyticsError(f"{path}: {connector_hint(path, said, pyspark.__version__) or said}") from error


def _entry(status: Any) -> Entry:
    path = status.getPath()
    return Entry(
        path.toString(), path.getName(), status.getLen(), bool(status.isDirectory()), status.getModificationTime()
    )
