"""A Spark cluster of one master and some workers on this machine: what a session in one process cannot show."""

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
#: Options of Java for what lives for seconds: it compiles less.
STARTS_SOONER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class Cluster:
    """A running cluster; ``url`` is what ``--master`` takes."""

    url: str
    work: Path

    def executors(self) -> set[str]:
        """Return who ran something for whom, as ``worker/application``: there is a folder of each."""
        return {str(found.parent.parent.relative_to(self.work)) for found in self.work.glob("*/app-*/*/stderr")}


def environment(place: Path) -> dict[str, str]:
    """Return what Spark's programs run with: pyspark's own Spark, all on the loopback interface."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    own = {
        "SPARK_HOME": SPARK_HOME,
        "SPARK_CONF_DIR": place,  # there is none: a configuration of this machine has no part in it
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": place / "local",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": STARTS_SOONER,
    }
    return outer | {name: str(value) for name, value in own.items()}


@contextmanager
def running_cluster(place: Path, *, workers: int = 2, memory: str = "768m") -> Iterator[Cluster]:
    """Run a cluster in the folder ``place``; every worker has one core, and ``memory`` for its executor."""
    # Neither this checkout nor its folder is on the nodes' path.
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
