"""Celery's native delayed delivery in the broker: the names of its objects, and which of them exist.

Names and keys are those of ``kombu.transport.native_delayed_delivery``, which older kombus do not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from ..amqp.apply import exchange_exists, ready_counts
from ..commands import command

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

#: Number of binary levels; level n holds messages for 2**n seconds.
LEVELS = 28
#: Every delayed call is published to this exchange.
ENTRY = f"celery_delayed_{LEVELS - 1}"
#: The exchange behind the lowest level, to which the user's exchanges are bound.
DELIVERY = "celery_delayed_delivery"


def level(number: int) -> str:
    """Return the name of a level's queue and exchange."""
    return f"celery_delayed_{number}"


def level_names() -> list[str]:
    """Return the names of all levels, the longest first, in the order in which messages pass them."""
    return [level(number) for number in reversed(range(LEVELS))]


def celery_native_bindings(queue: Queue) -> list[tuple[Exchange, str]]:
    """Return (exchange, routing key) of the bindings of a queue that Celery's native delayed delivery uses."""
    if isinstance(queue, Broadcast):
        return []
    if queue.exchange:
        bindings: list[tuple[Exchange | None, str | None]] = [(queue.exchange, queue.routing_key)]
    else:
        bindings = [(each.exchange, each.routing_key) for each in queue.bindings]
    return [(exchange, key or "") for exchange, key in bindings if exchange is not None and exchange.type != "direct"]


@dataclass(frozen=True)
class Leftovers:
    """The level queues that exist, with their numbers of ready messages, by name."""

    queues: dict[str, int]

    @property
    def messages(self) -> int:
        """How many messages wait in all levels."""
        return sum(self.queues.values())


def find_leftovers(connection: Connection) -> Leftovers | None:
    """Return the queues of Celery's native delayed delivery; None if it has no objects. Changes nothing."""
    if not exchange_exists(connection, DELIVERY):
        return None
    counts = ready_counts(connection, level_names())
    return Leftovers({name: count for name, count in counts.items() if count is not None})


def still_used(app: Celery, *, every_task: bool) -> bool:
    """Return whether the app's workers declare the levels at start, because it has quorum queues.

    ``every_task``: whether the setting ``exact_for`` is ``"all"``, which disables Celery's bootstep.
    """
    kinds = ((queue.queue_arguments or {}).get("x-queue-type") for queue in app.amqp.queues.values())
    return not every_task and "quorum" in kinds


def migrate() -> str:
    """Return the command that moves the messages of Celery's native delayed delivery."""
    return command("migrate --from celery-native")


def describe(found: Leftovers, *, used: bool) -> tuple[str, str]:
    """Return a description of leftovers, and a fix; ``used``: see `still_used`."""
    text = f"Celery's native delayed delivery has left {len(found.queues)} queues with {found.messages} messages."
    if used:
        return text.replace(" has left ", " keeps "), (
            f"Tasks that are not a RetryableTask use it. To stop them, set exact_for to 'all'; then run `{migrate()}`."
        )
    if found.messages:
        return text, f"Run `{migrate()}`; --remove also deletes the empty queues."
    return text, f"Run `{migrate()} --remove` to delete them."
