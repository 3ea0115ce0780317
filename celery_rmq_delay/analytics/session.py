"""The Spark session of the pipeline, on this machine or on a cluster, and how a signal ends a command that uses it.

SIGTERM and SIGINT never interrupt a call of Java in the middle: the connection to Java would be useless after that.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import celery_rmq_delay

from ..exceptions import AnalyticsError
from ..stopping import handling

#: The oldest Java that Spark 4 runs on.
JAVA = 17
_MOST_MEMORY_MB = 4096
_LEAST_MEMORY_MB = 1024
#: Seconds to wait for the end of jobs.
_END_SECONDS = 10.0

#: Settings that the pipeline needs and that can be set while a session runs.
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # pandas writes nanoseconds, which Spark reads as whole numbers or not at all.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The history has many small files: listing them must not become a job with one task per file.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # Keep a file of each day open instead of sorting all rows by day: they are sorted by task.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Rows are small, and 10,000 of them are a batch: computing the size of each one takes as long as converting it.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # What Spark infers from the checks of rows grows exponentially with the columns, and saves nothing here.
    "spark.sql.constraintPropagation.enabled": "false",
}

#: Java's best compiler took a third of the CPU time of a run over a million attempts. It compiles only what runs ten
#: times as often as by default; the rest is left to the fast compiler.
_JAVA = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

#: Defaults of a session that this module starts.
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.defaultJavaOptions": " ".join(_JAVA),
    # Checksums of rows are for stages that run again after a machine was lost.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}
_OURS = {
    "spark.ui.enabled": "false",
    # Errors are reported by the pipeline, in one line: Spark would add pages of Java traces.
    "spark.log.level": "OFF",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.rdd.compress": "true",
    # Hadoop's first committer moves every file twice; no other writer uses the folder of a run.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    # Bytes that each open file may hold in memory.
    "spark.hadoop.parquet.block.size": str(16 * 2**20),
}


def open_session(
    master: str | None = None, conf: Mapping[str, str] | None = None, *, progress: bool = False
) -> SparkSession:
    """Return the active session, or a new one: on all cores of this machine unless ``master`` is set.

    ``conf`` overrides everything set here. Under ``spark-submit`` its settings apply. ``progress`` shows Spark's
    progress bar. Raises `AnalyticsError` if Java is missing or too old, or the master cannot be reached.
    """
    conf = conf or {}
    builder = SparkSession.builder.appName("celery-rmq-delay").config(map=_settings(master, conf, progress=progress))
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise AnalyticsError(f"Spark did not start: {' '.join(str(error).split())[:500]}") from error
    prepare(session, conf)
    return session


def prepare(spark: SparkSession, conf: Mapping[str, str] = MappingProxyType({})) -> None:
    """Apply the settings that the pipeline needs and that a running session accepts; ``conf`` overrides them."""
    for name, value in _SQL.items():
        spark.conf.set(name, conf.get(name, value))
    # The code for the nodes is sent with the job: they need neither this package nor Celery.
    cloudpickle.register_pickle_by_value(celery_rmq_delay)  # type: ignore[no-untyped-call]


@contextmanager
def no_jobs_left(spark: SparkSession) -> Iterator[None]:
    """End all jobs of the session if the block is interrupted or fails: they would go on writing."""
    try:
        yield
    except BaseException:
        with suppress(PySparkException, Py4JError, OSError):
            spark.sparkContext.cancelAllJobs()
            tracker = spark.sparkContext.statusTracker()
            deadline = time.monotonic() + _END_SECONDS
            while tracker.getActiveStageIds() and time.monotonic() < deadline:
                time.sleep(0.05)
        raise


def check_java() -> None:
    """Raise `AnalyticsError` if there is no Java that Spark can run on."""
    hint = f"Spark needs Java {JAVA} or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise AnalyticsError(f"java: not found. {hint}, or set JAVA_HOME to its folder.")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise AnalyticsError(f"{java}: does not run ({error}). {hint}, and set JAVA_HOME to its folder.") from error
    if (found := java_version(done.stderr + done.stdout)) < JAVA:
        raise AnalyticsError(f"{java}: found Java {found}. {hint}, and set JAVA_HOME to its folder.")


def java_version(text: str) -> int:
    """Return the number before the first dot of what ``java -version`` prints; 8 for the old ``1.8``, 0 for neither."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0


def is_local(spark: SparkSession) -> bool:
    """Return whether Spark runs on this machine only."""
    return str(spark.sparkContext.master).startswith("local")


def _settings(master: str | None, conf: Mapping[str, str], *, progress: bool) -> dict[str, Any]:
    """Return the settings of a session; checks Java, and prepares the environment, if it has to be started."""
    if SparkContext._active_spark_context is not None:
        return {**conf}
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started this process: Java runs with its settings
        return {**({"spark.master": master} if master else {}), **conf}
    check_java()
    master = master or conf.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    ours = {**_OURS, "spark.ui.showConsoleProgress": str(progress).lower(), "spark.master": master}
    if master.startswith("local"):
        # Use this Python for the Python workers, and do not fail if the host name cannot be resolved.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        ours |= _LOCAL
    # Half of the machine's memory, limited to the range that the pipeline can use.
    half_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**21
    ours["spark.driver.memory"] = f"{max(_LEAST_MEMORY_MB, min(_MOST_MEMORY_MB, half_mb))}m"
    return {**ours, **_SQL, **conf}


_Result = TypeVar("_Result")

#: Seconds between two attempts to cancel the running jobs.
_AGAIN = 0.3


class Stoppable(Generic[_Result]):
    """Work that a signal ends: its running job is cancelled, then `check` raises. A second ends the process."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._signal: signal.Signals | None = None
        self._done: Future[_Result] = Future()

    def check(self) -> None:
        """Raise `SystemExit` if a signal has come."""
        if self._signal is not None:
            raise SystemExit(128 + self._signal)

    def run(self) -> _Result:
        """Return what the work returns, or raise what it raises; `SystemExit` with 128 + the signal if one came."""
        thread = threading.Thread(target=self._call, daemon=True, name="work")
        with handling(self._stop):
            thread.start()
            while thread.is_alive():
                thread.join(_AGAIN)
                if self._signal is not None:
                    _cancel_jobs()
        self.check()
        return self._done.result()

    def _call(self) -> None:
        try:
            self._done.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `run`
            self._done.set_exception(error)

    def _stop(self, number: int, _frame: object) -> None:
        if self._signal is not None:
            os._exit(128 + number)
        self._signal = signal.Signals(number)
        # Java may end, too, if the signal goes to all processes: its libraries would log that, and pyspark's server of
        # accumulators would print that its connection has ended.
        logging.disable()
        setattr(socketserver.BaseServer, "handle_error", lambda *_: None)  # noqa: B010 - this process ends
        sys.stderr.write(f"Stopped by {self._signal.name}: ending the running job.\n")


def _cancel_jobs() -> None:
    context = SparkContext._active_spark_context
    with suppress(Py4JError, OSError, TypeError):  # Java may have ended
        if context is not None:
            context.cancelAllJobs()
