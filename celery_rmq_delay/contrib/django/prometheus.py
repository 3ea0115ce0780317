"""Prometheus metrics: counts from the Django app's tables, and the lateness of retries.

Every process with the same tables returns the same values, so rules take the ``max`` over instances. Only the lateness
differs between collectors: rules sum it. Django is imported when metrics are read, not before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from .services.stats import Total

__all__ = [
    "MAX_AGE",
    "TableMetrics",
    "exposition",
    "lateness",
    "observe_lateness",
    "registry",
]

logger = logging.getLogger(__name__)

#: Seconds for which metrics of the tables are cached.
MAX_AGE = 10.0

#: Older tallies hardly change: their sum is read only once in this period.
_SETTLED = timedelta(hours=2)

_Samples = Iterable[tuple[Iterable[str], float]]

lateness = Histogram(
    "rmq_delay_retry_lateness_seconds",
    "Seconds from when a retry was due until it started: the way back to its queue, and the wait for a worker.",
    ["queue"],
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600),
    registry=None,
)


def registry(max_age: float = MAX_AGE) -> CollectorRegistry:
    """Return a new registry with all metrics of this module; the tables are read once in ``max_age`` seconds."""
    found = CollectorRegistry()
    found.register(TableMetrics(max_age))
    found.register(lateness)
    return found


def exposition(metrics: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics in the format for the HTTP header ``accept``, and their content type."""
    encode, content_type = choose_encoder(accept)
    return encode(metrics), content_type


def observe_lateness(queue: str, seconds: float) -> None:
    """Observe that a retry of a task of ``queue`` started ``seconds`` after it was due."""
    lateness.labels(queue).observe(seconds)


class TableMetrics(Collector):
    """Reads the tables on request, at most once in ``max_age`` seconds.

    If the database does not answer, it does not raise: ``rmq_delay_database_up`` is 0.
    """

    def __init__(self, max_age: float = MAX_AGE) -> None:
        self._max_age = max_age
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._metrics: list[Metric] = []
        self._totals = _Totals()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        from django.db import Error

        with self._lock:
            if time.monotonic() - self._read_at >= self._max_age:
                try:
                    self._metrics = [_up(1), *_tables(self._totals), *_broker()]
                except Error:
                    logger.exception("The database does not answer: there are no metrics of its tables")
                    self._metrics = [_up(0), *_broker()]
                self._read_at = time.monotonic()
            return self._metrics


def _tables(totals: _Totals) -> Iterator[Metric]:
    yield from _parked()
    yield from _held()
    yield from totals.metrics()
    yield from _operations()
    yield from _collectors()


def _up(value: int) -> Metric:
    return GaugeMetricFamily("rmq_delay_database_up", "Whether the tables could be read.", value=value)


def _metric(
    name: str,
    documentation: str,
    labels: list[str],
    samples: _Samples,
    family: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    found = family(name, documentation, labels=labels)
    for values, number in samples:
        found.add_metric(list(values), number)
    return found


def _parked() -> Iterator[Metric]:
    from .services import stats

    labels = ["queue", "tier"]
    found = [((each.queue, "exact" if each.tier is None else str(each.tier)), each) for each in stats.parked()]
    yield _metric("rmq_delay_parked", "Parked tasks.", labels, ((at, each.count) for at, each in found))
    yield _metric("rmq_delay_due", "Parked tasks that are due.", labels, ((at, each.due) for at, each in found))
    text = "Parked tasks without an event for a minute after they were due."
    yield _metric("rmq_delay_overdue", text, labels, ((at, each.overdue) for at, each in found))
    text = "When the first of the parked tasks is due."
    times = ((at, each.oldest_due.timestamp()) for at, each in found if each.oldest_due)
    yield _metric("rmq_delay_oldest_due_timestamp_seconds", text, labels, times)


def _held() -> Iterator[Metric]:
    from .models import TaskState, UnreadableMessage
    from .services import stats

    found = stats.held(TaskState.EXHAUSTED, TaskState.UNKNOWN)
    exhausted = [each for each in found if each.state == TaskState.EXHAUSTED]
    unknown = [each for each in found if each.state == TaskState.UNKNOWN]
    text = "Exhausted tasks, which wait for an operator."
    yield _metric("rmq_delay_exhausted", text, ["queue"], (([each.queue], each.count) for each in exhausted))
    times = (([each.queue], each.since.timestamp()) for each in exhausted if each.since)
    text = "When the oldest of the exhausted tasks was exhausted."
    yield _metric("rmq_delay_oldest_exhausted_timestamp_seconds", text, ["queue"], times)
    text = "Tasks that were requeued without an answer from the broker."
    yield _metric("rmq_delay_outcome_unknown", text, ["queue"], (([each.queue], each.count) for each in unknown))
    text = "Messages that the collector could not read."
    yield GaugeMetricFamily("rmq_delay_unreadable_messages", text, value=UnreadableMessage.objects.count())


class _Totals:
    """Counters that never decrease. The sum of older tallies is cached, as a year of tallies has many rows."""

    def __init__(self) -> None:
        self._boundary: datetime | None = None
        self._settled: list[Total] = []

    def metrics(self) -> Iterator[Metric]:
        from django.utils import timezone

        from .services import stats

        boundary = timezone.now() - _SETTLED
        if self._boundary is None or boundary - self._boundary > _SETTLED:
            self._settled, self._boundary = stats.totals(before=boundary), boundary
        sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for total in (*self._settled, *stats.totals(since=self._boundary)):
            sums[total.queue, total.task].update({name: getattr(total, name) for name in _TOTALS})
        for name, text in _TOTALS.items():
            samples = ((labels, counts[name]) for labels, counts in sums.items())
            yield _metric(f"rmq_delay_tasks_{name}", text, ["queue", "task"], samples, CounterMetricFamily)


_TOTALS = {
    "parked": "How often a task was parked.",
    "recovered": "Tasks that succeeded after they had failed.",
    "exhausted": "How often a task was exhausted.",
    "succeeded": "First attempts that succeeded.",
}


def _operations() -> Iterator[Metric]:
    from .services import stats

    found = stats.operations()
    text = "Operations by kind and state."
    yield _metric("rmq_delay_operations", text, ["kind", "state"], (([o.kind, o.state], o.count) for o in found))
    outcomes: Counter[tuple[str, str]] = Counter()
    for each in found:
        outcomes.update({(each.kind, outcome): getattr(each, outcome) for outcome in stats.OUTCOMES})
    text = "Tasks of operations by outcome."
    yield _metric("rmq_delay_operation_tasks", text, ["kind", "outcome"], outcomes.items())


def _collectors() -> Iterator[Metric]:
    from .models import CollectorStatus

    found = list(CollectorStatus.objects.order_by("name"))
    labels = ["collector"]
    heartbeats = (([each.name], each.heartbeat_at.timestamp()) for each in found)
    yield _metric("rmq_delay_collector_heartbeat_timestamp_seconds", "Time of its last heartbeat.", labels, heartbeats)
    text = "Age of the youngest event of its last batch when it was written."
    yield _metric(
        "rmq_delay_collector_lag_seconds", text, labels, (([each.name], each.lag_ms / 1000) for each in found)
    )
    text = "Messages in the queues that it consumes, at its last count."
    yield _metric("rmq_delay_collector_waiting_messages", text, labels, (([each.name], each.waiting) for each in found))
    text = "Messages that the delay queues hold more than the table, beyond what is in flight, at its last comparison."
    samples = (([each.name], each.differs_by) for each in found)
    yield _metric("rmq_delay_collector_parked_difference", text, labels, samples)
    samples, text = (([each.name], each.events) for each in found), "Events that it has written."
    yield _metric("rmq_delay_collector_events", text, labels, samples, CounterMetricFamily)
    samples, text = (([each.name], each.exhausted) for each in found), "Exhausted messages that it has written."
    yield _metric("rmq_delay_collector_exhausted_messages", text, labels, samples, CounterMetricFamily)


def _broker() -> Iterator[Metric]:
    from .services.counts import broker_counts

    counts = broker_counts()
    if counts.is_pending:
        return
    yield GaugeMetricFamily("rmq_delay_broker_up", "Whether the broker's queues could be counted.", value=counts.ok)
    if not counts.ok:
        return
    parked = Counter({("", "exact"): counts.exact})
    for each in counts.tiers:  # several delays can have the same number: a task's own ladder has tiers, too
        parked[each.queue, str(each.tier)] += each.parked
    yield _metric("rmq_delay_broker_parked", "Messages in the delay queues.", ["queue", "tier"], parked.items())
    waiting = {"exhausted": counts.exhausted, "events": counts.events}
    samples = (([kind], number) for kind, number in waiting.items() if number is not None)
    yield _metric("rmq_delay_broker_waiting", "Messages that wait for a collector.", ["kind"], samples)
