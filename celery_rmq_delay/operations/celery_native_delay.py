"""Celery's native delayed delivery in the broker: the names of its objects, which of them exist, and their removal.

Names and keys are those of ``kombu.transport.native_delayed_delivery``, which older kombus do not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from celery import Celery
from kombu import Connection
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from ..amqp.apply import exchange_exists, ready_counts
from ..app.state import AppState
from ..commands import command
from ..exceptions import TopologyError
from ..management.records import QueueDetail
from .deletion import Runner, Step, delete_exchange, delete_queue, unbind
from .results import listed_counts

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
    bindings = [queue] if queue.exchange else queue.bindings
    return [
        (each.exchange, each.routing_key or "")
        for each in bindings
        if each.exchange is not None and each.exchange.type != "direct"
    ]


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


def still_used(delay: AppState) -> bool:
    """Return whether workers declare the levels at start: the app has quorum queues, and ``exact_for`` is not "all"."""
    kinds = ((queue.queue_arguments or {}).get("x-queue-type") for queue in delay.app.amqp.queues.values())
    return not delay.settings.exact.every_task and "quorum" in kinds


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


def check_unused(delay: AppState) -> None:
    """Raise `TopologyError` if the app's workers would declare the objects again."""
    if still_used(delay):
        raise TopologyError(
            "Celery's native delayed delivery is still in use: the app has quorum queues, so each worker that starts "
            "declares its queues again, and calls of tasks that are not a RetryableTask go there. Set exact_for to "
            "'all', which disables Celery's bootstep, deploy workers and publishers, then remove."
        )


def remove(connection: Connection, app: Celery, details: Mapping[str, QueueDetail] | None) -> list[str]:
    """Delete Celery's levels, and the bindings to the app's queues; return the names of what was deleted.

    ``details`` are the queues from the management API, which alone reports dead letters that no queue takes; None skips
    that check. The entry is deleted first, so that a publisher which still uses it gets an error instead of losing a
    message. Raises `TopologyError`, and deletes no queue, if any holds a message; a queue that another client uses
    stays, with all by which its messages return. Can be run again.
    """
    runner = Runner(connection)
    _check_empty(connection, details)
    runner.take(delete_exchange(ENTRY))
    removed = [each.name for each in runner.deleted]
    _check_empty(connection, details)
    if not runner.run(_plan(app)):
        (left,) = runner.left
        raise TopologyError(f"The queue {left.name!r} was not deleted: {left.reason} {left.fix}")
    return removed + [" ".join(each) for each in runner.deleted[len(removed) :]]


def _plan(app: Celery) -> Iterator[Step]:
    yield from map(delete_queue, level_names())
    for queue, exchange, key in added_bindings(app):
        yield unbind(queue, exchange, key)
    yield from map(delete_exchange, (*level_names(), DELIVERY))


def _check_empty(connection: Connection, details: Mapping[str, QueueDetail] | None) -> None:
    counts = ready_counts(connection, level_names())
    if listed := listed_counts(counts):
        raise TopologyError(f"There are messages in {listed}. Move them first: `{migrate()}`.")
    stuck = {name: details[name].dead_letters_waiting for name in counts if details and name in details}
    if listed := listed_counts(stuck):
        raise TopologyError(
            f"There are dead letters that no queue takes in {listed}. Bind one of your queues to {DELIVERY!r} with the "
            "key '#', wait until they are in it, then remove."
        )


def added_bindings(app: Celery) -> list[tuple[str, str, str]]:
    """Return (queue, exchange, routing key) of the bindings that Celery added to the app's exchanges for its levels."""
    own = [(queue.name, exchange.name, key) for queue in app.amqp.queues.values()
           for exchange, key in celery_native_bindings(queue)]  # fmt: skip
    added = [(queue, exchange, f"#.{key}") for queue, exchange, key in own if not key.startswith("#")]
    return [each for each in added if each not in own]
