"""Contents of alerts: texts for mails and data for webhooks. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ....redaction import shortened

_SUBJECT = 150
_MESSAGE = 500


@dataclass(frozen=True)
class Alert:
    """The count of tasks of one failure group that were parked, recovered or exhausted since a time.

    ``task``, ``queue``, ``task_id`` and ``reason`` are those of the last one.
    """

    kind: str
    count: int
    since: datetime
    task: str
    queue: str
    task_id: str
    reason: str
    exception_type: str
    message: str
    frame: str
    fingerprint: str

    @property
    def headline(self) -> str:
        """One line, such as ``12 exhausted: requests.Timeout: no answer in <n> s``."""
        what = ": ".join(filter(None, (self.exception_type or self.reason or self.task, self.message)))
        return f"{self.count} {self.kind}: {shortened(' '.join(what.split()), _MESSAGE)}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the time in ISO 8601, UTC."""
        return {**vars(self), "since": self.since.astimezone(timezone.utc).isoformat(timespec="seconds")}


def subject(alerts: Sequence[Alert]) -> str:
    """Return the subject of a mail: one line."""
    if len(alerts) == 1:
        return shortened(_counted(alerts[0].count, alerts[0].headline.partition(" ")[2]), _SUBJECT)
    kinds: dict[str, int] = {}
    for alert in alerts:
        kinds[alert.kind] = kinds.get(alert.kind, 0) + alert.count
    counts = ", ".join(_counted(count, kind) for kind, count in kinds.items())
    return f"{counts} in {len(alerts)} failure groups"


def text(alerts: Sequence[Alert]) -> str:
    """Return the body of a mail: a paragraph per failure group, the one with the most tasks first."""
    return "\n\n".join(_paragraph(alert) for alert in sorted(alerts, key=lambda alert: -alert.count))


def payload(alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the JSON for a webhook: ``text`` for chats, and ``alerts`` for programs."""
    return {"text": f"{subject(alerts)}\n\n{text(alerts)}", "alerts": [alert.to_json() for alert in alerts]}


def _paragraph(alert: Alert) -> str:
    since = alert.since.astimezone(timezone.utc)
    lines = [
        alert.headline,
        f"since {since:%Y-%m-%d %H:%M:%S} UTC" + (f", in {alert.frame}" if alert.frame else ""),
        f"last: {alert.task}[{alert.task_id}] of queue {alert.queue}" + (f" ({alert.reason})" if alert.reason else ""),
    ]
    return "\n  ".join(lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {'task' if count == 1 else 'tasks'} {what}"
