"""Acts on unreadable messages: download, requeue unchanged, drop. Each adds an operation to the audit log."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from struct import pack
from typing import Any

import amqp
from amqp import spec
from django.db.models import Q

from .... import headers as h
from ....exceptions import RmqDelayError
from ....headers import printable
from ..broker import BROKER_ERRORS, Link, broker_down, delay, problem_at
from ..conf import conf
from ..models import Operation, UnreadableMessage
from ..transactions import committed, repeated
from . import clock
from .actors import Actor, note_done
from .operations.publishing import Outcome, Publisher, Sent

#: A claim that is older is of a process that died.
CLAIM_LASTS = timedelta(minutes=5)
#: Headers by which RabbitMQ routes a message to more queues.
_ROUTING_HEADERS = ("CC", "BCC")
_TRANSIENT = 1


class _Unchanged(amqp.Message):  # type: ignore[misc]  # its stubs have no type for it
    """A stored message, decoded except its body; it is published with the bytes of its properties as received."""

    def __init__(self, body: bytes, properties: bytes) -> None:
        super().__init__(body)
        self._received = properties
        self.inbound_header(pack(">HxxQ", spec.Basic.CLASS_ID, len(body)) + properties)

    def _serialize_properties(self) -> bytes:
        return self._received


@dataclass(frozen=True)
class Readable:
    """What can be read of an unreadable message. With a ``problem`` it cannot be requeued.

    ``origin`` is the queue that it was in before it was dead-lettered; empty where that is unknown. ``expires_in`` is
    the time until it expires in a queue (text, in milliseconds), empty for none.
    """

    message: amqp.Message | None
    problem: str = ""
    origin: str = ""
    expires_in: str = ""
    transient: bool = False


@dataclass(frozen=True)
class Requeued:
    """The result of a requeue: its operation, and why the message stays; an empty text where it was requeued."""

    operation: Operation
    problem: str = ""


def readable(row: UnreadableMessage) -> Readable:
    """Return what can be read of a message. Never raises for malformed messages."""
    try:
        message = _Unchanged(bytes(row.body), bytes(row.headers))
    except Exception:  # noqa: BLE001 - hostile bytes
        return Readable(None, "Its properties cannot be decoded: it can only be downloaded or dropped.")
    properties = message.properties
    headers: Mapping[Any, Any] = properties.get("application_headers") or {}
    routing = [name for name in _ROUTING_HEADERS if name in headers]
    problem = "Its header {} would route it to other queues, too: it can only be downloaded or dropped."
    return Readable(
        message,
        problem.format(routing[0]) if routing else "",
        _origin(row, headers),
        printable(str(properties.get("expiration") or "")),
        properties.get("delivery_mode", _TRANSIENT) == _TRANSIENT,
    )


def _origin(row: UnreadableMessage, headers: Mapping[Any, Any]) -> str:
    if row.queue == delay().settings.names.events:
        return ""
    try:
        found = h.origin_queue(headers) or ""
    except Exception:  # noqa: BLE001 - hostile headers
        return ""
    return found if found == printable(found) else ""


def download(row: UnreadableMessage, actor: Actor) -> tuple[bytes, str]:
    """Return the body and, as JSON, all else of a message, after an audit log entry that ``actor`` revealed it.

    The JSON has the decoded ``properties`` (None where they cannot be decoded) and their bytes in hexadecimal.
    """
    note_done(Operation.Kind.REVEAL, actor, requested=1, message="1 revealed", **_details(row))
    found = {
        "queue": row.queue,
        "error": row.error,
        "digest": row.digest,
        "received_at": row.received_at.isoformat(),
        "properties_hex": bytes(row.headers).hex(),
    }
    message = readable(row).message
    try:
        text = _as_json({**found, "properties": message and message.properties})
    except RecursionError:
        text = _as_json({**found, "properties": None})
    return bytes(row.body), text


def _as_json(value: Any) -> str:
    return json.dumps(_plain(value), indent=2, default=str)


def _plain(value: Any) -> Any:
    """Return a value with texts as keys: a name that is not valid UTF-8 is of type bytes."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def requeue(row: UnreadableMessage, queue: str, *, actor: Actor, reason: str = "") -> Requeued:
    """Publish a message unchanged to an existing queue; delete its row after the broker's confirm.

    In a crash between the two, the message is in the queue and in the table: it can be there twice, and is never lost.
    Raises `RmqDelayError` where nothing was tried: it cannot be requeued, or another user acts on it.
    """
    known = readable(row)
    if known.message is None or known.problem:
        raise RmqDelayError(known.problem)
    if not committed(lambda: _free(row).update(claimed_at=clock.now())):
        raise RmqDelayError(_taken(row))
    sent = _sent(known.message, row, queue)
    return committed(lambda: _settled(row, queue, sent, actor, reason))


def _free(row: UnreadableMessage) -> Any:
    """Return the row, where no requeue is under way and it was not received again since it was loaded."""
    unclaimed = Q(claimed_at=None) | Q(claimed_at__lt=clock.now() - CLAIM_LASTS)
    return UnreadableMessage.objects.filter(unclaimed, pk=row.pk, received_at=row.received_at)


def _taken(row: UnreadableMessage) -> str:
    if UnreadableMessage.objects.filter(pk=row.pk).exists():
        return "Another user requeues this message at the moment, or it was received again. Check it again."
    return "Another user has requeued or dropped this message. Nothing was changed."


def _sent(message: amqp.Message, row: UnreadableMessage, queue: str) -> Sent:
    with closing(Link(conf().broker_timeout, time.sleep)) as link:
        publisher = Publisher(link)
        try:
            opened = publisher.ready()
            # A collector may be able to read it after an upgrade.
            if queue != row.queue and (problem := problem_at(opened, queue)):
                return Sent(Outcome.PENDING, problem)
        except RmqDelayError as error:
            return Sent(Outcome.PENDING, str(error))
        except BROKER_ERRORS as error:
            return Sent(Outcome.PENDING, str(broker_down(error)))
        return publisher.publish([(row.pk, message, queue)])[row.pk]


def _settled(row: UnreadableMessage, queue: str, sent: Sent, actor: Actor, reason: str) -> Requeued:
    rows = UnreadableMessage.objects.filter(pk=row.pk)
    unknown = sent.outcome == Outcome.UNKNOWN
    if sent.outcome == Outcome.OK:
        rows.filter(received_at=row.received_at).delete()
        problem, message = "", f"requeued to {queue}"
    elif unknown:
        problem = message = (
            f"It is unknown whether the message is in the queue {queue}: {sent.reason}. The message stays here. "
            "Check the queue before you requeue it again."
        )
    else:
        problem = message = f"The message was not requeued and stays here: {sent.reason}."
    rows.update(claimed_at=None)
    operation = note_done(
        Operation.Kind.REQUEUE,
        actor,
        requested=1,
        failed=int(bool(problem) and not unknown),
        unknown=int(unknown),
        reason=reason,
        message=message,
        into_queue=queue,
        **_details(row),
    )
    return Requeued(operation, problem)


def drop(row: UnreadableMessage, *, actor: Actor, reason: str = "") -> Operation:
    """Delete a message for good. Raises `RmqDelayError` where another user acts on it."""

    def step() -> Operation:
        if not _free(row).delete()[0]:
            raise RmqDelayError(_taken(row))
        return note_done(
            Operation.Kind.DISCARD, actor, requested=1, reason=reason, message="dropped for good", **_details(row)
        )

    return repeated(step)


def _details(row: UnreadableMessage) -> dict[str, Any]:
    return {"unreadable_message": row.digest, "from_queue": row.queue, "size": len(row.body)}
