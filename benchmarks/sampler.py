"""Sample worker, collector, broker and queues every few seconds while a benchmark runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import kombu

from benchmarks.brokers import Broker
from benchmarks.long_haul_report import Sample
from benchmarks.output import progress
from benchmarks.processes import usage
from benchmarks.run import Run


class Sampler:
    """A context manager with its own thread; ``samples`` and ``marks`` count seconds from its start.

    With a ``collector`` the broker's memory is measured without garbage, so each sample makes the broker collect it.
    """

    def __init__(
        self, run: Run, broker: Broker, worker: int, collector: int | None = None, *, interval: float = 3.0
    ) -> None:
        self.worker, self.collector = worker, collector
        self.samples: list[Sample] = []
        self.marks: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.delay_queue = ""
        self._run, self._broker, self._interval = run, broker, interval
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._started = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        if self.delay_queue:
            self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def watch(self, delay_queue: str) -> None:
        """Start sampling, with the messages of this delay queue."""
        self.delay_queue = delay_queue
        self._thread.start()

    def mark(self, name: str) -> None:
        """Record the time of an event."""
        self.marks[name] = time.monotonic() - self._started
        progress.print(f"{name} after {self.marks[name]:.0f} s, {self._run.progress().attempts:,} attempts")

    def since(self, mark: str) -> list[Sample]:
        """Return the samples from a mark on."""
        return [each for each in self.samples if each.seconds >= self.marks[mark]]

    def _sample(self) -> None:
        try:
            with kombu.Connection(self._run.env["BENCHMARK_BROKER_URL"]) as connection:
                channel: Any = connection.channel()
                while True:
                    self.samples.append(self._measured(channel))
                    if self._stop.wait(self._interval):
                        return
        except BaseException as error:  # noqa: BLE001 - raised again at the end of the block
            self._error = error

    def _measured(self, channel: Any) -> Sample:
        pid = self._broker.pid
        return Sample(
            seconds=time.monotonic() - self._started,
            worker=usage(self.worker).rss,
            collector=None if self.collector is None else usage(self.collector).rss,
            broker=self._broker.memory(collected=self.collector is not None),
            broker_rss=None if pid is None else usage(pid).rss,
            disk=self._broker.disk(),
            parked=channel.queue_declare(self.delay_queue, passive=True).message_count,
            ready=channel.queue_declare("work", passive=True).message_count,
            attempts=self._run.progress().attempts,
        )
