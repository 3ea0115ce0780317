"""Delete what Celery's own delayed delivery left in the broker, once nothing is in it any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from amqp.exceptions import NotFound

from ...amqp.apply import ready_counts
from ...exceptions import TopologyError
from .. import celery_native_delay

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ...management.records import QueueDetail


def check_unused(app: Celery, *, every_task: bool) -> None:
    """Raise `TopologyError` where the app's own workers would declare everything again."""
    if celery_native_delay.still_used(app, every_task=every_task):
        raise TopologyError(
            "Celery's own delayed delivery is still in use: the app has quorum queues, so each worker that starts "
            "declares its queues again, and calls of tasks that are no RetryableTask go there. Set exact_for to 'all', "
            "which keeps Celery's step out, deploy workers and publishers, then remove."
        )


def remove(connection: Connection, app: Celery, details: Mapping[str, QueueDetail] | None) -> list[str]:
    """Delete Celery's levels, and the bindings to the app's queues; return the names of what was deleted.

    ``details`` are the queues as the management API has them: it alone tells of dead letters that no queue takes; None
    does without. The entry goes first, so that a publisher which still uses it gets an error instead of losing a
    message. Raises `TopologyError`, and deletes no queue, where a message is in any. Can be run again.
    """
    _check_empty(connection, details)
    removed = []
    if celery_native_delay.exchange_exists(connection, celery_native_delay.ENTRY):
        _apart(connection, lambda channel: channel.exchange_delete(celery_native_delay.ENTRY))
        removed.append(celery_native_delay.ENTRY)
    _check_empty(connection, details)
    _unbind(connection, app)
    for name in celery_native_delay.level_names():
        if ready_counts(connection, [name])[name] is not None:
            _apart(connection, lambda channel, name=name: channel.queue_delete(name, if_unused=False))
            removed.append(f"queue {name}")
    for name in (*celery_native_delay.level_names(), celery_native_delay.DELIVERY):
        if celery_native_delay.exchange_exists(connection, name):
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
                "Move them first: `celery -A proj rmq-delay migrate --from celery-native`."
                if found is counts
                else f"Bind a queue of yours to {celery_native_delay.DELIVERY!r} with the key '#', wait until they are "
                "in it, then remove."
            )
            raise TopologyError(f"There are {what} in {listed}. {hint}")


def celery_native_bindings(app: Celery) -> list[tuple[str, str, str]]:
    """Return (queue, exchange, routing key) of the bindings that Celery made for its levels on the app's own exchanges.

    Those that the app declares itself are not among them.
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
    """Do something on a channel of its own; what it is about may be gone."""
    with suppress(NotFound), connection.channel() as channel:
        act(channel)
