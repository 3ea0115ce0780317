"""Publishes windows of messages, mandatory and with confirms, and returns the outcome of each message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import amqp

from .....amqp.confirms import ChannelEndedError, ConfirmingPublisher, confirming_channel
from .....amqp.route import Route
from .....exceptions import BrokerDownError, NackedError, PublishError, UnroutableError
from ...broker import BROKER_ERRORS, Link, delay
from ...conf import conf
from ...models import OperationItem

if TYPE_CHECKING:
    from kombu import Connection

Outcome = OperationItem.Outcome

#: Publishes that wait for their confirms at the same time: the most whose outcome is unknown when the broker dies.
WINDOW = 64


@dataclass(frozen=True)
class Sent:
    """What became of a message and why: OK is confirmed, FAILED refused, UNKNOWN unanswered, PENDING not sent."""

    outcome: str
    reason: str = ""


class Publisher:
    """Publishes into queues by name, in windows.

    The first window has one message: where the broker refuses it by closing the channel (no permission, too large), no
    others are in doubt. Windows double while there is no error.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._publisher: ConfirmingPublisher | None = None
        self._silent: str | None = None
        self.window = 1

    def ready(self) -> Connection:
        """Connect before tasks are claimed; return the connection. Raises `BrokerDownError`."""
        if self._silent is not None:
            raise BrokerDownError(self._silent)
        return self._link.open(self._prepare)

    def _prepare(self, opened: Connection) -> None:
        self._publisher = ConfirmingPublisher(confirming_channel(opened))

    def publish(self, messages: Iterable[tuple[int, amqp.Message, str]]) -> dict[int, Sent]:
        """Publish (key, message, queue); return the outcome of each key. Call `ready` before."""
        assert self._publisher is not None  # noqa: S101 - `ready` made it
        batch = list(messages)
        found: dict[int, Sent] = {}
        written: list[int] = []
        trouble: BaseException | None = None
        try:
            for key, message, queue in batch:
                written.append(key)
                self._publisher.publish(message, Route("", queue), partial(_note, found, key, queue))
            self._publisher.wait(conf().broker_timeout)
        except BROKER_ERRORS as error:
            trouble = error
        doubtful = [key for key in written if key not in found]
        if trouble is None:
            self.window = min(2 * self.window, WINDOW)
        elif isinstance(trouble, ChannelEndedError) and len(batch) == 1:
            found.update(
                {key: Sent(Outcome.FAILED, f"the broker refused it: {trouble.reply_text}") for key in doubtful}
            )
        else:
            found.update({key: Sent(Outcome.UNKNOWN, _doubt(trouble)) for key in doubtful})
        if trouble is not None:
            self._link.drop()
            self.window = 1
            if isinstance(trouble, TimeoutError):
                self._silent = _doubt(trouble)
        return {key: found.get(key, Sent(Outcome.PENDING)) for key, _message, _queue in batch}


def _note(found: dict[int, Sent], key: int, queue: str, error: PublishError | None) -> None:
    if error is None:
        found[key] = Sent(Outcome.OK)
    elif isinstance(error, UnroutableError):
        found[key] = Sent(Outcome.FAILED, f"there is no queue {queue}")
    elif isinstance(error, NackedError) and delay().dead_letters_refused(queue):
        found[key] = Sent(Outcome.UNKNOWN, f"queue {queue} is full, and sends what it refuses to the exhausted queue")
    elif isinstance(error, NackedError):
        found[key] = Sent(Outcome.FAILED, f"queue {queue} refused it: it is full")
    else:
        found[key] = Sent(Outcome.FAILED, str(error))


def _doubt(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no confirm in {conf().broker_timeout:g} s"
    return "the connection was lost before its confirm"
