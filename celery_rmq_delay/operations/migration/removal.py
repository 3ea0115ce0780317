"""Delete the objects of Celery's native delayed delivery, once they hold no messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from amqp.exceptions import NotFound

from ...amqp.apply import exchange_exists, ready_counts
from ...exceptions import TopologyError
from .. import celery_native_delay

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ...management.records import QueueDetail


def check_unused(app: Celery, *, every_task: bool) -> None:
    """Raise `TopologyError` if the app's workers would declare the objects again."""
    if celery_native_delay.still_used(app, every_task=every_task):
        raise TopologyError(
            "Celery's native delayed delivery is still in use: the app has quorum queues, so each worker that starts "
            "declares its queues again, and calls of tasks that are not a RetryableTask go there. Set exact_for to "
            "'all', which disables Celery's bootstep, deploy workers and publishers, then remove."
        )


def remove(connection: Connection, app: Celery, details: Mapping[str, QueueDetail] | None) -> list[str]:
    """Delete Celery's levels, and the bindings to the app's queues; return the names of what was deleted.

    ``details`` are the queues from the management API, which alone reports dead letters that no queue takes; None skips
    that check. The entry is deleted first, so that a publisher which still uses it gets an error instead of losing a
    message. Raises `TopologyError`, and deletes no queue, if any holds a message. Can be run again.
    """
    _check_empty(connection, details)
    removed = []
    if exchange_exists(connection, celery_native_delay.ENTRY):
        _apart(connection, lambda channel: channel.exchange_delete(celery_native_delay.ENTRY))
        removed.append(celery_native_delay.ENTRY)
    _check_empty(connection, details)
    _unbind(connection, app)
    for name in celery_native_delay.level_names():
        if ready_counts(connection, [name])[name] is not None:
            _apart(connection, lambda channel, name=name: channel.queue_delete(name, if_unused=False))
            removed.append(f"queue {name}")
    for name in (*celery_native_delay.level_names(), celery_native_delay.DELIVERY):
        if exchange_exists(connection, name):
            _apart(connection, lambda channel, name=name: channel.exchange_delete(name))
            removed.append(f"exchange {name}")
    return removed


def _check_empty(connection: Connection, details: Mapping[str, QueueDetail] | None) -> None:
    counts = ready_counts(connection, celery_native_delay.level_names())
    stuck = {name: details[name].dead_letters_waiting for name in counts if details and name in details}
    for found, what in ((counts, "messages"), (stuck, "dead letters that no queue takes")):
        full = {name: count for name, count in found.items() if count}
        if full:
            listed = ", ".join(f"{name} ({count})" for name, count in full.items())
            hint = (
                f"Move them first: `{celery_native_delay.migrate()}`."
                if found is counts
                else f"Bind one of your queues to {celery_native_delay.DELIVERY!r} with the key '#', wait until they "
                "are in it, then remove."
            )
            raise TopologyError(f"There are {what} in {listed}. {hint}")


def celery_native_bindings(app: Celery) -> list[tuple[str, str, str]]:
    """Return (queue, exchange, routing key) of the bindings that Celery added to the app's exchanges for its levels.

    Excludes those that the app itself declares.
    """
    found, own = [], set()
    for queue in app.amqp.queues.values():
        for exchange, key in celery_native_delay.celery_native_bindings(queue):
            own.add((queue.name, exchange.name, key))
            if not key.startswith("#"):
                found.append((queue.name, exchange.name, f"#.{key}"))
    return [each for each in found if each not in own]


def _unbind(connection: Connection, app: Celery) -> None:
    for queue, exchange, key in celery_native_bindings(app):
        _apart(connection, lambda channel, to=queue, of=exchange, key=key: channel.queue_unbind(to, of, key))


def _apart(connection: Connection, act: Callable[..., object]) -> None:
    """Act on a separate channel; ignore a missing object."""
    with suppress(NotFound), connection.channel() as channel:
        act(channel)
