"""Counts alerts by failure group, throttles them, and sends them in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import connections
from django.utils import timezone

from ..conf import conf
from ..models import FailureGroup, TaskRecord
from ..services.payloads import redaction_of_project
from . import content
from .content import Alert

logger = logging.getLogger(__name__)

#: Seconds that an alert waits for others, so that a burst becomes one message.
SETTLE = 2.0
#: Seconds after which a message that could not be sent is tried again.
RETRY_AFTER = 30.0
#: Seconds for which the process waits at its end for the last message.
LAST_WORDS = 20.0

#: The most failure groups that are counted at a time; more are dropped.
MAX_GROUPS = 1_000

_Key = tuple[str, str]


@dataclass(frozen=True)
class _Counted:
    """The count of one failure group since its last alert; ``added_at`` is on the monotonic clock."""

    record: TaskRecord
    count: int
    since: datetime
    added_at: float


class Outbox:
    """Counts tasks, and sends the count of each failure group at most once in ``every`` seconds.

    ``send`` is called in the outbox's thread. If it raises, the counts stay, it is called again after `RETRY_AFTER`
    seconds, and one error is logged. Alerts that are still throttled when the process ends are not sent.
    """

    def __init__(self, name: str, send: Callable[[Sequence[Alert]], object], *, every: float) -> None:
        self._name, self._send, self._every = name, send, every
        self._changed = threading.Condition()
        self._counted: dict[_Key, _Counted] = {}
        self._sent_at: dict[_Key, float] = {}
        self._not_before = float("-inf")
        self._failing = self._dropping = self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, kind: str, record: TaskRecord) -> None:
        """Count a task that was just parked, recovered or exhausted, or ran again. Does not block."""
        group = record.failure_group
        key = kind, group.fingerprint if group is not None else f"{record.name} {record.reason}"
        new = _Counted(record, 1, timezone.now(), time.monotonic())
        with self._changed:
            self._count(key, new)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"rmq-delay-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send the alerts that are due, and stop the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_WORDS)

    def _count(self, key: _Key, new: _Counted) -> None:
        if before := self._counted.get(key):
            count = before.count + new.count
            self._counted[key] = replace(new, count=count, since=before.since, added_at=before.added_at)
        elif len(self._counted) < MAX_GROUPS:
            self._counted[key] = new
        elif not self._dropping:
            self._dropping = True
            text = "Alerts of more than %d failure groups wait for the %s: others are dropped"
            logger.warning(text, MAX_GROUPS, self._name)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                while not (due := self._due()) and not self._closing:
                    self._changed.wait(self._pause())
                closing = self._closing
                for key in due:
                    del self._counted[key]
            if due:
                self._deliver(due)

    def _due(self) -> dict[_Key, _Counted]:
        """Return the counts for the next message: none, or all that are not throttled."""
        now = time.monotonic()
        self._sent_at = {key: at for key, at in self._sent_at.items() if at + self._every > now}
        free = {key: counted for key, counted in self._counted.items() if key not in self._sent_at}
        return free if self._closing or any(self._ready_at(key) <= now for key in free) else {}

    def _ready_at(self, key: _Key) -> float:
        """Return when a count has to be sent, on the monotonic clock."""
        throttled = self._sent_at.get(key, float("-inf")) + self._every
        return max(throttled, self._counted[key].added_at + SETTLE, self._not_before)

    def _pause(self) -> float | None:
        """Return the seconds until the next count is ready; None while there is none."""
        if not self._counted:
            return None
        return max(0.0, min(map(self._ready_at, self._counted)) - time.monotonic())

    def _deliver(self, due: Mapping[_Key, _Counted]) -> None:
        try:
            found = _alerts(due)
            if found:
                self._send(found)
        except Exception as error:  # noqa: BLE001 - an error of a mail backend must not stop the collector
            self._failed(due, error)
        else:
            self._done(due)
        finally:
            connections.close_all()  # of this thread

    def _failed(self, due: Mapping[_Key, _Counted], error: Exception) -> None:
        with self._changed:
            newer, self._counted = self._counted, dict(due)
            for key, counted in newer.items():
                self._count(key, counted)
            self._not_before = time.monotonic() + RETRY_AFTER
        if not self._failing:
            text = "Alerts cannot be sent by %s (%s: %s): retrying"
            logger.error(text, self._name, type(error).__name__, error)
        self._failing = True

    def _done(self, due: Mapping[_Key, _Counted]) -> None:
        with self._changed:
            self._sent_at.update(dict.fromkeys(due, time.monotonic()))
            self._dropping = False
        if self._failing:
            logger.warning("Alerts can be sent by %s again", self._name)
        self._failing = False


def _alerts(due: Mapping[_Key, _Counted]) -> list[Alert]:
    """Return the alerts of groups that are not muted."""
    fingerprints = [fingerprint for _, fingerprint in due]
    muted = set(
        FailureGroup.objects.filter(fingerprint__in=fingerprints, muted=True).values_list("fingerprint", flat=True)
    )
    return [_alert(kind, counted) for (kind, fingerprint), counted in due.items() if fingerprint not in muted]


def _alert(kind: str, counted: _Counted) -> Alert:
    record = counted.record
    group = record.failure_group
    shown = redaction_of_project().text  # stored texts were redacted with the rules of that time: these may be more
    return Alert(
        kind=kind,
        count=counted.count,
        since=counted.since,
        task=shown(record.name),
        queue=shown(record.queue),
        task_id=shown(record.task_id),
        reason=shown(record.reason),
        exception_type=shown(group.exception_type if group else record.exception_type),
        message=shown(group.message) if group else "",
        frame=shown(group.frame) if group else "",
        fingerprint=group.fingerprint if group else "",
        url=content.link(conf().notify.admin_url, kind, record=record.pk, group=group.pk if group else None),
    )
