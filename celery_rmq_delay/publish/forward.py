"""The forward path: publish Celery's message into a delay queue with confirm.

Celery creates the message, with its signals, stamps and serializers; only the destination is changed here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from amqp.exceptions import ChannelError, NotFound
from kombu.pools import connections, producers
from kombu.utils.collections import eqhash

from ..amqp.capabilities import capabilities
from ..amqp.confirms import publisher_on, refusal
from ..amqp.connections import another, named
from ..commands import command
from ..exceptions import OutcomeUnknownError, PublishError, UnroutableError
from ..headers import (
    DUE,
    EXCHANGE,
    FIRST_FAILED,
    LANE,
    RETRIES,
    ROUTING_KEY,
    TO,
    put_priority_away,
    timestamp,
    without_dead_letters,
)
from ..ladders import lane_of
from ..retry.delivery import KEY, Delivery

if TYPE_CHECKING:
    from celery import Celery, Task
    from kombu import Connection, Producer

    from ..amqp.route import Route
    from ..app.exact import ExactDelays
    from ..app.state import AppState

_ROUTE_OPTIONS = ("exchange", "routing_key", "countdown", "eta")


def pooled(app: Celery) -> Connection:
    """Return the template of the connections of the app's pool; it need not be open."""
    pool: Any = app.pool  # the stubs have a pool of producers
    connection: Connection = pool.connection
    return connection


@contextmanager
def confirming(app: Celery, given: Connection | None = None) -> Iterator[Producer]:
    """Yield a pooled producer whose publishes wait for the confirm, for the broker of the ``given`` connection."""
    with producers[_confirming(app, given)].acquire(block=True) as producer:
        yield producer


_NAME = "celery_rmq_delay calls"

#: The address of a connection, and the key of its pool of confirming producers: creating the key takes longer than a
#: publish.
_pools: WeakKeyDictionary[Connection, tuple[object, Connection]] = WeakKeyDictionary()


def _confirming(app: Celery, given: Connection | None) -> Connection:
    own = pooled(app)
    source = own if given is None else given
    address = source.hostname, source.port, source.virtual_host  # changes on fail-over
    found = _pools.get(source)
    if found is None or found[0] != address:
        # With a name of its own the app has no pool with the same options: nobody else counts confirms on its channels.
        options = {**named(source.transport_options, _NAME), "confirm_publish": False}
        if source.as_uri(include_password=True) == own.as_uri(include_password=True):
            made = app.connection_for_write(transport_options=options)
        else:
            made = another(source, transport_options=options)
        found = _pools[source] = (address, made)
    return found[1]


def _leave_to_the_parent() -> None:
    """Drop the parent's connections in a forked process, which opens its own: the parent might read their confirms.

    billiard does so in a worker's child processes. The inherited sockets are closed here without a word to the broker.
    """
    for _, made in _pools.values():
        for group in (producers, connections):
            group.pop(eqhash(made), None)


os.register_at_fork(after_in_child=_leave_to_the_parent)


def connection_of(producer: Producer) -> Connection:
    """Return the connection of a producer that has one."""
    assert producer.connection is not None  # noqa: S101 - the stubs have it as optional
    return producer.connection


class Redirect:
    """A producer that sends one task message along a route, and delegates everything else to the wrapped producer.

    The headers of the message keep its original exchange and routing key.
    """

    def __init__(self, producer: Producer, exact: ExactDelays, route: Route) -> None:
        self._exact, self._route = exact, route
        self._producer: Any = producer  # the stubs lack what its publish returns
        #: Whether the task message is published.
        self.is_sent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish the task message with confirm; later messages (events) are published as usual.

        Raises `PublishError`, also for a refused declaration of the task's queue.
        """
        if self.is_sent:
            return self._producer.publish(body, **options)
        retry, policy = options.pop("retry", False), options.pop("retry_policy", None) or {}
        send: Callable[..., Any] = self._send
        if retry:
            send = self._producer.connection.ensure(self._producer, send, **policy)
        result = send(body, self._redirected(options))
        self.is_sent = True
        return result

    def _redirected(self, options: dict[str, Any]) -> dict[str, Any]:
        exchange = options.get("exchange")
        headers = without_dead_letters(options.get("headers") or {})
        headers.setdefault(EXCHANGE, getattr(exchange, "name", exchange) or "")
        headers.setdefault(ROUTING_KEY, options.get("routing_key") or "")
        for name in (DUE, TO):
            headers.pop(name, None)
        return {
            **options,
            "headers": {**headers, **self._route.headers},
            "exchange": self._route.exchange,
            "routing_key": self._route.routing_key,
            # Celery's `expires`, which Celery checks again: as a TTL it would end the delay.
            "expiration": None,
        }

    def _send(self, body: Any, options: dict[str, Any]) -> Any:
        try:
            return self._try_twice(body, options)
        except NotFound as error:
            raise UnroutableError(
                f"{error.reply_text}. Run `{command('apply --exact-delays')}` as a user who may declare it."
            ) from error
        except ChannelError as error:
            self._reopen()
            raise refusal(self._route.where, error) from error

    def _try_twice(self, body: Any, options: dict[str, Any]) -> Any:
        declared = self._producer.connection.declared_entities
        for queue in options.get("declare") or ():
            if hash(queue) not in declared:  # kombu checks that, too, but copies the queue first
                self._producer.maybe_declare(queue)
        options = {**options, "declare": None}
        try:
            return self._publish(body, options)
        except (UnroutableError, NotFound):  # declared objects were deleted
            self._exact.forget(self._producer.connection)
            self._reopen()
        return self._publish(body, options)

    def _reopen(self) -> None:
        """Open the channel again if an error has closed it."""
        if not self._producer.channel.is_open:
            connection = self._producer.connection
            connection.revive(connection.channel())
            self._producer.revive(connection.default_channel)

    def _publish(self, body: Any, options: dict[str, Any]) -> Any:
        route, channel = self._route, self._producer.channel
        self._exact.prepare(self._producer.connection, route)
        self._exact.warn_unconsumed(self._producer.connection)
        if route.sorts and capabilities(self._producer.connection).sorts_quorum:
            options = {**options, "headers": dict(options["headers"])}
            put_priority_away(options, options["headers"])
        try:
            with publisher_on(channel).along(route):
                return self._producer.publish(body, **options)
        except BaseException as error:
            if isinstance(error, OutcomeUnknownError) or not isinstance(error, (PublishError, ChannelError)):
                # A frame may have been read in part, or the message be returned late. Closing might block, too.
                self._producer.connection.collect()
            raise


#: The id of the task whose retry is being published, and the producer that publishes it along its route.
_retry: ContextVar[tuple[str, Redirect] | None] = ContextVar("rmq_delay_retry", default=None)


def retry_of(task_id: str | None) -> Redirect | None:
    """Return the producer of the retry of this task, while `publish_retry` has not published it; else None."""
    found = _retry.get()
    return found[1] if found is not None and found[0] == task_id and not found[1].is_sent else None


def publish_retry(
    delay: AppState,
    task: Task[Any, Any],
    delivery: Delivery,
    signature: Any,
    *,
    tier_index: int,
    queue: str,
    delay_ms: int | None,
) -> None:
    """Publish ``signature`` to the delay queue of ``tier_index`` of ``queue``, or with an exact ``delay_ms``.

    Blocks until the broker has confirmed it, so call it in the task's process. Raises `PublishError`, also if the
    task's own ``apply_async`` publishes nothing, or `DelayError` for a delay that is too long.
    """
    options = dict(signature.options)
    request: Any = task.request  # belongs to a message, so it has an id
    apply_async: Any = task.apply_async  # the stubs lack kombu's options
    # Celery treats every unknown header as one of the task's, including the broker's and ours.
    headers = without_dead_letters(options.pop("headers", None) or {})
    for name in (KEY, EXCHANGE, ROUTING_KEY):
        headers.pop(name, None)
    headers.setdefault(RETRIES, 0)
    headers.setdefault(FIRST_FAILED, timestamp(datetime.now(timezone.utc)))
    if queue == delivery.queue:
        origin = request.delivery_info or {}
        headers |= {EXCHANGE: origin.get("exchange") or "", ROUTING_KEY: origin.get("routing_key") or queue}
    for name in _ROUTE_OPTIONS:
        options.pop(name, None)
    options["queue"] = queue
    with confirming(task.app) as producer:
        if delay_ms is None:
            route, lane = _to_tier(delay, task, tier_index, queue)
            if lane is not None:
                headers[LANE] = lane
        else:
            route = delay.exact.route(connection_of(producer), delay_ms, queue, "countdown or eta", delay_ms / 1000)
        redirect = Redirect(producer, delay.exact, route)
        token = _retry.set((request.id, redirect))
        try:
            apply_async(signature.args, signature.kwargs, **options, headers=headers, producer=redirect)
        finally:
            _retry.reset(token)
    if not redirect.is_sent:
        raise PublishError(f"apply_async of {task.name} has published nothing.")


def _to_tier(delay: AppState, task: Task[Any, Any], tier_index: int, queue: str) -> tuple[Route, int | None]:
    """Return the route through a tier's delay queue, and the message's lane."""
    ladder = delay.ladder(queue, task)
    tier_index = min(tier_index, len(ladder))
    task_id: Any = task.request.id
    lane = lane_of(task_id, ladder.lanes) if ladder.lanes > 1 else None
    plan = delay.plan(queue, reason_routing=True, tasks=False)
    return plan.route(tier_index, ladder.ttl(tier_index, lane)), lane
