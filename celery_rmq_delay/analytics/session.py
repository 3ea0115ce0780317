"""The Spark session of the pipeline: on the cores of this machine by default, or on a cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import celery_rmq_delay

from ..exceptions import AnalyticsError

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
    started = SparkContext._active_spark_context is not None
    if not started and not submitted():
        check_java()
        if _is_local(_master(master, conf or {})):
            # Use this Python for the Python workers, and do not fail if the host name cannot be resolved.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("celery-rmq-delay")
    for name, value in _settings(master, dict(conf or {}), progress=progress, started=started).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise AnalyticsError(f"Spark did not start: {' '.join(str(error).split())[:500]}") from error
    prepare(session, conf or {})
    return session


def prepare(spark: SparkSession, conf: Mapping[str, str] | None = None) -> None:
    """Apply the settings that the pipeline needs and that a running session accepts; ``conf`` overrides them."""
    for name, value in {**_SQL, **{name: value for name, value in (conf or {}).items() if name in _SQL}}.items():
        spark.conf.set(name, value)
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


def submitted() -> bool:
    """Return whether ``spark-submit`` started this process: then Java already runs with its settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


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


def _master(master: str | None, conf: Mapping[str, str]) -> str:
    return master or conf.get("spark.master") or os.environ.get("MASTER") or "local[*]"


def is_local(spark: SparkSession) -> bool:
    """Return whether Spark runs on this machine only."""
    return _is_local(spark.sparkContext.master or "")


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _settings(master: str | None, conf: dict[str, str], *, progress: bool, started: bool) -> dict[str, str]:
    if started:
        return conf
    if submitted():
        return {**({"spark.master": master} if master else {}), **conf}
    master = _master(master, conf)
    local = _LOCAL if _is_local(master) else {}
    ours = {**_OURS, **local, "spark.driver.memory": f"{_memory_mb()}m", "spark.master": master}
    return {**ours, "spark.ui.showConsoleProgress": str(progress).lower(), **_SQL, **conf}


def _memory_mb() -> int:
    """Return half of the machine's memory, limited to the range that the pipeline can use."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(_LEAST_MEMORY_MB, min(_MOST_MEMORY_MB, machine // 2))
