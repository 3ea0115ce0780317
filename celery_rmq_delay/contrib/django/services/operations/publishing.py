"""Publishes windows of messages, mandatory and with confirms, and returns the fate of each message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import amqp

from .....amqp.confirms import ChannelEndedError, ConfirmingPublisher, confirming_channel
from .....amqp.route import Route
from .....exceptions import BrokerDownError, NackedError, PublishError, UnroutableError
from ...broker import delay
from ...conf import conf
from .link import BROKER_ERRORS, Link

if TYPE_CHECKING:
    from kombu import Connection

#: Publishes that wait for their confirms at the same time: the most whose outcome is unknown when the broker dies.
WINDOW = 64


class Fate(Enum):
    """What is known about a published message."""

    CONFIRMED = "confirmed"
    #: The broker has rejected it.
    REFUSED = "refused"
    #: It was sent, and no answer came.
    UNKNOWN = "unknown"
    #: It was not sent.
    UNSENT = "unsent"


@dataclass(frozen=True)
class Sent:
    """The fate of a message, and why it is not `Fate.CONFIRMED`."""

    fate: Fate
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
        """Publish (key, message, queue); return the fate of each key. Call `ready` before."""
        assert self._publisher is not None  # noqa: S101 - `ready` made it
        batch = list(messages)
        found: dict[int, Sent] = {}
        written: list[int] = []
        trouble: BaseException | None = None
        try:
            for key, message, queue in batch:
                written.append(key)
                self._publisher.publish(message, Route("", queue), _note(found, key, queue))
            self._publisher.wait(conf().broker_timeout)
        except BROKER_ERRORS as error:
            trouble = error
        doubtful = [key for key in written if key not in found]
        if trouble is None:
            self.window = min(2 * self.window, WINDOW)
        elif isinstance(trouble, ChannelEndedError) and len(batch) == 1:
            found.update({key: Sent(Fate.REFUSED, _refusal(trouble)) for key in doubtful})
        else:
            found.update({key: Sent(Fate.UNKNOWN, _doubt(trouble)) for key in doubtful})
        if trouble is not None:
            self._link.drop()
            self.window = 1
            if isinstance(trouble, TimeoutError):
                self._silent = _doubt(trouble)
        return {key: found.get(key, Sent(Fate.UNSENT)) for key, _message, _queue in batch}


def _note(found: dict[int, Sent], key: int, queue: str) -> Callable[[PublishError | None], None]:
    def done(error: PublishError | None) -> None:
        if error is None:
            found[key] = Sent(Fate.CONFIRMED)
        elif isinstance(error, UnroutableError):
            found[key] = Sent(Fate.REFUSED, f"there is no queue {queue}")
        elif isinstance(error, NackedError) and delay().dead_letters_refused(queue):
            text = f"queue {queue} is full, and sends what it refuses to the exhausted queue"
            found[key] = Sent(Fate.UNKNOWN, text)
        elif isinstance(error, NackedError):
            found[key] = Sent(Fate.REFUSED, f"queue {queue} refused it: it is full")
        else:
            found[key] = Sent(Fate.REFUSED, str(error))

    return done


def _refusal(error: ChannelEndedError) -> str:
    return f"the broker refused it: {error.reply_text}"


def _doubt(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no confirm in {conf().broker_timeout:g} s"
    return "the connection was lost before its confirm"
