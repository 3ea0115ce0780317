"""Contents of alerts: texts for mails and data for webhooks. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ....redaction import shortened

_SUBJECT = 150
_MESSAGE = 500
#: Slack's limits: blocks of a message (one is for the rest), and characters of a block.
_BLOCKS, _BLOCK = 40, 2_900

_WORDS = {"discarded_ran": "ran again after discard"}
_LISTS = {"parked": "parkedtask", "exhausted": "exhaustedtask"}


@dataclass(frozen=True)
class Alert:
    """The count of tasks of one failure group that were parked, recovered or exhausted, or ran again, since a time.

    ``task``, ``queue``, ``task_id`` and ``reason`` are those of the last one; ``url`` is their page in the admin.
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
    url: str

    @property
    def word(self) -> str:
        """What happened to the tasks."""
        return _WORDS.get(self.kind, self.kind)

    @property
    def headline(self) -> str:
        """One line, such as ``12 exhausted: requests.Timeout: no answer in <n> s``."""
        what = ": ".join(filter(None, (self.exception_type or self.reason or self.task, self.message)))
        return f"{self.count} {self.word}: {shortened(' '.join(what.split()), _MESSAGE)}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the time in ISO 8601, UTC."""
        return {**vars(self), "since": self.since.astimezone(timezone.utc).isoformat(timespec="seconds")}


def subject(alerts: Sequence[Alert]) -> str:
    """Return the subject of a mail: one line."""
    if len(alerts) == 1:
        return shortened(_counted(alerts[0].count, alerts[0].headline.partition(" ")[2]), _SUBJECT)
    kinds: Counter[str] = Counter()
    for alert in alerts:
        kinds[alert.word] += alert.count
    counts = ", ".join(_counted(count, kind) for kind, count in kinds.items())
    return f"{counts} in {len(alerts)} failure groups"


def text(alerts: Sequence[Alert]) -> str:
    """Return the body of a mail: a paragraph per failure group, the one with the most tasks first."""
    return "\n\n".join(_paragraph(alert) for alert in sorted(alerts, key=lambda alert: -alert.count))


def payload(alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return the JSON for a webhook: ``text`` for people, and ``alerts`` for programs."""
    return {"text": f"{subject(alerts)}\n\n{text(alerts)}", "alerts": [alert.to_json() for alert in alerts]}


def slack(alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return a message for Slack: a block per group, the most tasks first. Slack may refuse undocumented keys."""
    ordered = sorted(alerts, key=lambda alert: -alert.count)
    texts = [_block(alert) for alert in ordered[:_BLOCKS]]
    if len(ordered) > _BLOCKS:
        texts.append(f"and {len(ordered) - _BLOCKS} more failure groups")
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": each, "verbatim": True}} for each in texts]
    return {"text": _escaped(subject(alerts)), "blocks": blocks}


def link(admin_url: str | None, kind: str, *, record: object, group: object) -> str:
    """Return the URL of a failure group, or else of a list or a task, on the admin site, if that is known."""
    if not admin_url:
        return ""
    page = (
        f"failuregroup/{group}/change/" if group is not None else f"{_LISTS.get(kind, f'taskrecord/{record}/change')}/"
    )
    return f"{admin_url.rstrip('/')}/rmq_delay/{page}"


def _block(alert: Alert) -> str:
    title, _, rest = _paragraph(alert, with_url=False).partition("\n")
    shown = shortened(f"*{_escaped(title)}*\n{_escaped(rest)}", _BLOCK)
    return f"{shown}\n<{_escaped(alert.url)}|Open in the admin>" if alert.url else shown


def _escaped(shown: str) -> str:
    """Return a text without Slack's control characters, which mark links and mentions."""
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _paragraph(alert: Alert, *, with_url: bool = True) -> str:
    since = alert.since.astimezone(timezone.utc)
    lines = [
        alert.headline,
        f"since {since:%Y-%m-%d %H:%M:%S} UTC" + (f", in {alert.frame}" if alert.frame else ""),
        f"last: {alert.task}[{alert.task_id}] of queue {alert.queue}" + (f" ({alert.reason})" if alert.reason else ""),
    ]
    return "\n  ".join([*lines, alert.url] if with_url and alert.url else lines)


def _counted(count: int, what: str) -> str:
    return f"{count} {'task' if count == 1 else 'tasks'} {what}"
