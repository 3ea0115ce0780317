"""A Spark cluster of one master and some workers on this machine."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from celery_rmq_delay.testing.servers.process import KeptProcess
from tests.support.waiting import wait_for

SPARK_HOME = Path(pyspark.__file__).parent
CLASSES = "org.apache.spark.deploy"
#: Options of Java for short-lived processes: less compilation.
STARTS_SOONER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Cluster:
    """A running cluster; ``url`` is the value of ``--master``."""

    url: str
    work: Path

    def executors(self) -> set[str]:
        """Return the executors as ``worker/application``: each has a folder."""
        return {str(found.parent.parent.relative_to(self.work)) for found in self.work.glob("*/app-*/*/stderr")}


def environment(place: Path) -> dict[str, str]:
    """Return the environment of Spark's programs: pyspark's own Spark, on the loopback interface only."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    own = {
        "SPARK_HOME": SPARK_HOME,
        "SPARK_CONF_DIR": place,  # a missing folder, so that this machine's configuration is not used
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": place / "local",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": STARTS_SOONER,
    }
    return outer | {name: str(value) for name, value in own.items()}


@contextmanager
def running_cluster(place: Path, *, workers: int = 2, memory: str = "768m") -> Iterator[Cluster]:
    """Run a cluster in the folder ``place``; every worker has one core, and ``memory`` for its executor."""
    # The nodes' path contains neither this checkout nor its folder.
    nodes = {name: value for name, value in environment(place).items() if name != "PYTHONPATH"}
    addresses = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")

    def start(log: Path, *words: str) -> Path:
        command = [str(SPARK_HOME / "bin" / "spark-class"), *words]
        process = KeptProcess(command, env=nodes, output=log, farewell=signal.SIGTERM)
        kept.callback(process.close)
        process.start()
        return log

    with ExitStack() as kept:
        log = start(place / "master.log", f"{CLASSES}.master.Master", *addresses)
        (url,) = wait_for(lambda: _found(log, r"Starting Spark master at (spark://\S+)\n"), "the master's start")
        for number in range(workers):
            size = ("--cores", "1", "--memory", memory, "--work-dir", str(place / "work" / str(number)))
            start(place / f"worker-{number}.log", f"{CLASSES}.worker.Worker", *addresses, *size, url)
        wait_for(lambda: len(_found(log, "Registering worker")) == workers, "the workers' registration")
        yield Cluster(url, place / "work")


def _found(log: Path, pattern: str) -> list[str]:
    return re.findall(pattern, log.read_text(errors="replace")) if log.exists() else []
