"""Delete the objects of Celery's native delayed delivery, once they hold no messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...amqp.apply import ready_counts
from ...exceptions import TopologyError
from .. import celery_native_delay
from ..steps import Runner, Step, delete_exchange, delete_queue, unbind
from ..waiting import listed_counts

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
    message. Raises `TopologyError`, and deletes no queue, if any holds a message; a queue that another client uses
    stays, with all by which its messages return. Can be run again.
    """
    runner = Runner(connection)
    _check_empty(connection, details)
    runner.take(delete_exchange(celery_native_delay.ENTRY))
    removed = [each.name for each in runner.deleted]
    _check_empty(connection, details)
    if not runner.run(_plan(app)):
        (left,) = runner.left
        raise TopologyError(f"The queue {left.name!r} was not deleted: {left.reason} {left.fix}")
    return removed + [" ".join(each) for each in runner.deleted[len(removed) :]]


def _plan(app: Celery) -> Iterator[Step]:
    levels = celery_native_delay.level_names()
    yield from map(delete_queue, levels)
    for queue, exchange, key in celery_native_bindings(app):
        yield unbind(queue, exchange, key)
    yield from map(delete_exchange, (*levels, celery_native_delay.DELIVERY))


def _check_empty(connection: Connection, details: Mapping[str, QueueDetail] | None) -> None:
    counts = ready_counts(connection, celery_native_delay.level_names())
    stuck = {name: details[name].dead_letters_waiting for name in counts if details and name in details}
    for found, what in ((counts, "messages"), (stuck, "dead letters that no queue takes")):
        if listed := listed_counts(found):
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
