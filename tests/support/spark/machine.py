"""The Java machine shared by the tests of the pipeline, which is replaced when it is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from celery_rmq_delay.analytics.session import open_session
from tests.support.losses import Losses
from tests.support.spark.cluster import STARTS_SOONER
from tests.support.waiting import SECONDS

T = TypeVar("T")
#: Seconds of a quick test; seconds in which it may use Spark; and those in which a slow test may use Spark.
TIMEOUT, MOST_SECONDS, MOST_SECONDS_SLOW = 900.0, 600.0, 1_500.0


class SharedSpark:
    """A Spark session that is opened when a test wants it, and again where its Java machine has ended meanwhile.

    A lost machine fails the test that used it, and `close`, but not the tests after it. A machine also counts as lost
    if its context has stopped, or if it is ended here because a test takes too long: pytest-timeout would leave its
    connection with an unread answer, and each later call would get the answer of the one before it.
    """

    def __init__(self, place: Path) -> None:
        self._conf = {
            # If it ends by itself, the reason is in the folder.
            "spark.driver.extraJavaOptions": (
                f'{STARTS_SOONER} "-XX:ErrorFile={place}/java-%p.log" "-Djava.io.tmpdir={place}"'
            ),
            "spark.driver.memory": "1g",
            "spark.local.dir": str(place / "local"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
        }
        self._place = place
        self._session: SparkSession | None = None
        self._losses = Losses()

    def session(self) -> SparkSession:
        """Return the running session, or a new one."""
        self._forget_lost()
        if self._session is None:
            self._session = open_session("local[2]", self._conf)
        return self._session

    @contextmanager
    def limited(self, seconds: float = MOST_SECONDS) -> Iterator[SparkSession]:
        """Yield the session for so many seconds; then its Java machine is ended, with all calls that wait for it."""
        session = self.session()
        timer = threading.Timer(seconds, _gateway().proc.kill)
        timer.start()
        try:
            yield session
        finally:
            timer.cancel()

    def run(self, work: Callable[[SparkSession], T]) -> T:
        """Return the result of ``work``, which is called again if its Java machine ends."""

        def attempt() -> T:
            with self.limited() as session:
                return work(session)

        try:
            return attempt()
        except Exception:
            if not self._forget_lost():
                raise
            return attempt()

    def close(self) -> None:
        """Stop the session and its Java machine; raise `AssertionError` if one was lost before."""
        self._forget_lost()
        if self._session is not None:
            self._session.stop()
            self._end_java()
        self._losses.report()

    def _forget_lost(self) -> bool:
        """Return whether the Java machine or its context has ended, and forget it."""
        if self._session is None:
            return False
        context: Any = self._session.sparkContext
        gateway = _gateway()
        if gateway.proc.poll() is None:
            if _is_running(context):
                return False
            gateway.proc.kill()
        code = gateway.proc.wait()
        reasons = [path.read_text(errors="replace")[:4_000] for path in self._place.glob("java-*.log")]
        self._losses.add(f"Spark's Java machine ended with {code}", *reasons)
        context._jsc = None  # what `stop` would ask to stop
        context.stop()
        self._end_java()
        return True

    def _end_java(self) -> None:
        """End the Java machine, which would otherwise live as long as this process; the next session starts another."""
        gateway = _gateway()
        gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = self._session = None
        gateway.proc.stdin.close()  # which makes it end
        gateway.proc.wait(timeout=SECONDS)


def _is_running(context: Any) -> bool:
    """Return whether a context runs: a machine that is just ending is still a process, but does not answer."""
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def _gateway() -> Any:
    return SparkContext._gateway
