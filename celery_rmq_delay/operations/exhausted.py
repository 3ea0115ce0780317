"""The exhausted queue: list its messages, requeue them to their origin queues, or discard them.

A body is never decoded, only moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from kombu import Connection
from kombu.message import Message

from .. import headers as h
from ..amqp.confirms import ChannelEndedError
from ..amqp.copies import copy_of
from ..amqp.scan import SCAN_LIMIT, Scan, scanning
from ..exceptions import NackedError, OutcomeUnknownError, PublishError, SelectionError
from ..names import tier_of
from ..settings.values import Settings
from .approval import objection, report_failed
from .preview import Preview, preview_of
from .results import Result

#: Headers with facts that `ExhaustedDetails` has apart.
SHOWN_APART = frozenset({h.TRACEBACK, h.MESSAGE})


@dataclass(frozen=True)
class ExhaustedMessage(Result):
    """The facts in the headers of an exhausted message; None where a header is missing.

    ``queue`` is the origin queue, ``exception`` the type with its module, ``exhausted_at`` ISO 8601 in UTC,
    ``attempts`` how often the task ran, ``size`` the body's length in bytes.
    """

    task_id: str | None
    task: str | None
    queue: str | None
    reason: str | None
    exception: str | None
    message: str | None
    attempts: int
    exhausted_at: str | None
    size: int


#: Why a message is in the exhausted queue: the package's reasons, then those of the broker.
REASONS = (
    *("retries_used", "gave_up", "crashed", "undecodable", "unknown_task", "undeliverable"),
    *("rejected", "delivery_limit", "expired", "maxlen"),
)


@dataclass(frozen=True)
class Selection:
    """The selected exhausted messages: those that match all conditions.

    ``exception`` matches the type's name with or without its module. Acting on messages needs at least one condition,
    or ``everything``, but not both.
    """

    task_ids: frozenset[str] = frozenset()
    task: str | None = None
    queue: str | None = None
    exception: str | None = None
    reason: str | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        if self.reason is not None and self.reason not in REASONS:
            raise SelectionError(f"--reason: found {self.reason!r}. Write one of {', '.join(REASONS)}.")
        if self.everything and self.conditions:
            raise SelectionError("--all and a condition exclude each other: leave one out.")

    @property
    def conditions(self) -> bool:
        """Whether there is any condition."""
        return bool(self.task_ids or self.task or self.queue or self.exception or self.reason)

    def require(self) -> None:
        """Raise `SelectionError` if no messages are selected."""
        if not (self.everything or self.conditions):
            raise SelectionError("No messages selected: use task ids, --task, --queue, --exception, --reason or --all.")

    def wants(self, found: ExhaustedMessage) -> bool:
        """Return whether a message is selected."""
        return (
            (not self.task_ids or found.task_id in self.task_ids)
            and self.task in (None, found.task)
            and self.queue in (None, found.queue)
            and self.exception in (None, found.exception, (found.exception or "").rpartition(".")[2])
            and self.reason in (None, found.reason)
        )


@dataclass(frozen=True)
class Failure(Result):
    """A message that was not moved, and why."""

    found: ExhaustedMessage
    problem: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**self.found.to_json(), "problem": self.problem}


@dataclass
class Outcome(Result):
    """The result of a scan of the exhausted queue.

    ``done``: listed, requeued or discarded. ``seen`` is the number of inspected messages, ``complete`` whether that was
    the whole queue. ``consumed``: whether the queue has a consumer, as a collector, which moves its messages away.
    """

    done: list[ExhaustedMessage] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    not_found: list[str] = field(default_factory=list)
    seen: int = 0
    complete: bool = False
    consumed: bool = False


_EVERYTHING = Selection(everything=True)

_TAKEN_BACK = (
    "The broker has taken back this message and the later ones: {}. They are in the exhausted queue again; one that "
    "was just being moved may be in both queues. Run the command again, and use --limit if each message takes long."
)


def list_exhausted(
    connection: Connection, settings: Settings, selection: Selection = _EVERYTHING, *, limit: int | None = None,
    scan_limit: int = SCAN_LIMIT,
) -> Outcome:  # fmt: skip
    """Return at most ``limit`` selected messages, oldest first; inspects ``scan_limit`` and requeues them all."""
    return _sweep(connection, settings, selection, limit, scan_limit, lambda *_: None)


@dataclass(frozen=True)
class ExhaustedDetails:
    """An exhausted message with its headers, traceback and arguments, redacted by the rules of the settings."""

    facts: ExhaustedMessage
    shown: Preview
    traceback: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data; ``args`` and ``kwargs`` are JSON texts, or None with a ``problem``."""
        shown = self.shown
        return {
            **self.facts.to_json(),
            "args": shown.args or None,
            "kwargs": shown.kwargs or None,
            "problem": shown.problem or None,
            "content_type": shown.content_type,
            "headers": {each.name: each.value for each in shown.headers if each.name not in SHOWN_APART},
            "deaths": [vars(each) for each in shown.deaths],
            "traceback": self.traceback or None,
        }


def show_exhausted(
    connection: Connection, settings: Settings, task_id: str, *, scan_limit: int = SCAN_LIMIT
) -> tuple[list[ExhaustedDetails], Outcome]:
    """Return the messages of a task in the exhausted queue, mostly one, and the result of the scan."""
    found: list[ExhaustedDetails] = []

    def see(scan: Scan, message: Message, facts: ExhaustedMessage) -> None:
        body = _bytes(message.body if scan.raw is None else scan.raw.body)  # kombu decompresses that of `message`
        shown = preview_of(body, message.properties, lambda: dict(message.headers), settings.redaction)
        traceback = settings.redaction.text(message.headers.get(h.TRACEBACK), h.MAX_TRACEBACK)
        found.append(ExhaustedDetails(facts, shown, traceback))

    return found, _sweep(connection, settings, Selection(task_ids=frozenset({task_id})), None, scan_limit, see)


def requeue(
    connection: Connection, settings: Settings, selection: Selection, *, to: str | None = None,
    limit: int | None = None, scan_limit: int = SCAN_LIMIT,
    dead_letters_refused: Callable[[str], bool] = lambda _queue: False,
) -> Outcome:  # fmt: skip
    """Send the selected messages back to their origin queues as first published: same bytes, no retries counted.

    Each is published with confirm and as mandatory before it leaves the exhausted queue; a message that the broker does
    not accept, whose ``expires`` is past, or that a receiver of `before_requeue` keeps, is reported and stays. ``to``
    names the queue for all of them, for messages with an unknown origin queue. After the first refusal of a queue for
    which ``dead_letters_refused``, no other message is tried there: see `AppState`.
    """
    selection.require()
    full = set[str]()

    def send(scan: Scan, message: Message, found: ExhaustedMessage) -> str | None:
        target = to or found.queue
        if target is None:
            return "Its origin queue is unknown: name a queue with --to."
        if h.has_expired(message.headers):
            return "Its expires is past: a worker would revoke it. Call the task again, or discard it."
        copy = copy_of(message, h.replayed(message.headers))
        if target in full:
            return f"The queue {target!r} is full, and sends what it refuses to the exhausted queue."
        if reason := objection(copy, target):
            return reason
        try:
            scan.move(message, copy, "", target)
        except PublishError as error:
            if isinstance(error, NackedError) and dead_letters_refused(target):
                full.add(target)
            if not isinstance(error, OutcomeUnknownError):
                report_failed(copy, target)
            return str(error)
        return None

    return _sweep(connection, settings, selection, limit, scan_limit, send)


def discard(
    connection: Connection, settings: Settings, selection: Selection, *, limit: int | None = None,
    scan_limit: int = SCAN_LIMIT,
) -> Outcome:  # fmt: skip
    """Remove the selected messages for good."""
    selection.require()
    return _sweep(connection, settings, selection, limit, scan_limit, lambda scan, message, _: scan.remove(message))


def _sweep(
    connection: Connection, settings: Settings, selection: Selection, limit: int | None, scan_limit: int,
    act: Callable[[Scan, Message, ExhaustedMessage], str | None],
) -> Outcome:  # fmt: skip
    """Call ``act`` with each selected message; it returns why it failed, or None."""
    outcome = Outcome()
    with scanning(connection, settings.exhausted_queue, scan_limit) as scan:
        for message in scan:
            found = describe(message)
            if selection.wants(found):
                if found.message:
                    found = replace(found, message=settings.redaction.text(found.message, h.MAX_MESSAGE))
                try:
                    problem = act(scan, message, found)
                except ChannelEndedError as error:
                    outcome.failed.append(Failure(found, _TAKEN_BACK.format(error.reply_text)))
                    break
                if problem is None:
                    outcome.done.append(found)
                else:
                    outcome.failed.append(Failure(found, problem))
            if limit is not None and len(outcome.done) + len(outcome.failed) >= limit:
                break
    outcome.seen, outcome.complete, outcome.consumed = scan.seen, scan.complete, scan.shared
    met = {each.task_id for each in (*outcome.done, *(failure.found for failure in outcome.failed))}
    outcome.not_found = sorted(selection.task_ids - met)
    return outcome


def describe(message: Message) -> ExhaustedMessage:
    """Return the facts in the headers of an exhausted message, without decoding its body."""
    raw = message.headers
    queue, key = h.origin_queue(raw), str((message.delivery_info or {}).get("routing_key", ""))
    died = h.deaths(raw)[0] if h.deaths(raw) else {}
    return ExhaustedMessage(
        task_id=_text(h.task_id(raw, message.properties)),
        task=_text(raw.get("task")),
        queue=queue,
        reason=_text(raw.get(h.REASON) or _reason(raw, died, tier_of(queue or "", key))),
        exception=_text(raw.get(h.EXCEPTION)),
        message=_text(raw.get(h.MESSAGE)),
        attempts=_attempts(raw, queue),
        exhausted_at=_text(raw.get(h.EXHAUSTED_AT)) or _time(died.get("time")),
        size=len(_bytes(message.body)),
    )


def _bytes(body: str | bytes) -> bytes:
    return body if isinstance(body, bytes) else str(body).encode()


def _reason(raw: h.Headers, died: dict[str, Any], tier_index: int) -> object:
    """Return why the broker exhausted a message: ``died`` is its newest death, ``tier_index`` its last tier, or 0."""
    if h.is_due(died) or (died.get("reason") == "expired" and h.TO in raw and died.get("queue") != raw[h.TO]):
        return "undeliverable"  # it was due, and its queue was gone
    if died.get("reason") == "rejected" and not tier_index:
        return "undeliverable"  # it was to go to the first tier, which was gone
    return died.get("reason")


def _attempts(raw: h.Headers, queue: str | None) -> int:
    if h.ATTEMPTS in raw:
        return h.whole_number(raw[h.ATTEMPTS])
    return h.retries(raw, queue) if queue else h.whole_number(raw.get("retries"))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _time(value: object) -> str | None:
    return value.replace(tzinfo=timezone.utc).isoformat(timespec="seconds") if isinstance(value, datetime) else None
