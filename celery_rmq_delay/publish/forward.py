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
from celery import Celery
from kombu import Connection
from kombu.pools import connections, producers
from kombu.utils.collections import eqhash

from .. import headers as h
from ..amqp.capabilities import capabilities
from ..amqp.confirms import publisher_on, refusal
from ..amqp.connections import another, named
from ..amqp.route import Route
from ..app.exact import ExactDelays
from ..app.state import AppState
from ..commands import command
from ..exceptions import OutcomeUnknownError, PublishError, UnroutableError
from ..ladders import lane_of
from ..retry.delivery import KEY, Delivery

if TYPE_CHECKING:
    from celery import Task


def pooled(app: Celery) -> Connection:
    """Return the template of the connections of the app's pool; it need not be open."""
    pool: Any = app.pool  # the stubs have a pool of producers
    connection: Connection = pool.connection
    return connection


@contextmanager
def confirming(app: Celery, given: Connection | None = None) -> Iterator[Any]:
    """Yield a pooled producer whose publishes wait for the confirm, for the broker of the ``given`` connection."""
    with producers[_confirming(app, given)].acquire(block=True) as producer:
        yield producer


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
        options = {**named(source.transport_options, "celery_rmq_delay calls"), "confirm_publish": False}
        if source.as_uri(include_password=True) == own.as_uri(include_password=True):
            made = app.connection_for_write(transport_options=options)
        else:
            made = another(source, transport_options=options)
        found = _pools[source] = (address, made)
    return found[1]


def _leave_to_the_parent() -> None:
    """Drop the parent's connections in a forked process: the parent might read their confirms. Sends nothing."""
    for _, made in _pools.values():
        for group in (producers, connections):
            group.pop(eqhash(made), None)


os.register_at_fork(after_in_child=_leave_to_the_parent)


class Redirect:
    """A producer that sends one task message along a route; headers keep its own exchange and routing key."""

    def __init__(self, producer: Any, exact: ExactDelays, route: Route) -> None:
        self._producer, self._exact, self._route = producer, exact, route
        #: Whether the task message is published.
        self.is_sent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Publish the task message with confirm, later ones (events) as usual. Raises `PublishError`."""
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
        headers = h.without_dead_letters(options.get("headers") or {})
        headers.setdefault(h.EXCHANGE, getattr(exchange, "name", exchange) or "")
        headers.setdefault(h.ROUTING_KEY, options.get("routing_key") or "")
        for name in (h.DUE, h.TO):
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
            h.put_priority_away(options, options["headers"])
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
    without = ("exchange", "routing_key", "countdown", "eta")
    options = {name: value for name, value in signature.options.items() if name not in without}
    request: Any = task.request  # belongs to a message, so it has an id
    apply_async: Any = task.apply_async  # the stubs lack kombu's options
    # Celery treats every unknown header as one of the task's, including the broker's and ours.
    headers = h.without_dead_letters(options.pop("headers", None) or {})
    for name in (KEY, h.EXCHANGE, h.ROUTING_KEY):
        headers.pop(name, None)
    headers.setdefault(h.RETRIES, 0)
    headers.setdefault(h.FIRST_FAILED, h.timestamp(datetime.now(timezone.utc)))
    if queue == delivery.queue:
        origin = request.delivery_info or {}
        headers |= {h.EXCHANGE: origin.get("exchange") or "", h.ROUTING_KEY: origin.get("routing_key") or queue}
    options["queue"] = queue
    with confirming(task.app) as producer:
        if delay_ms is None:
            route, lane = _to_tier(delay, task, tier_index, queue)
            if lane is not None:
                headers[h.LANE] = lane
        else:
            route = delay.exact.route(producer.connection, delay_ms, queue, "countdown or eta", delay_ms / 1000)
        redirect = Redirect(producer, delay.exact, route)
        token = _retry.set((request.id, redirect))
        try:
            apply_async(signature.args, signature.kwargs, **options, headers=headers, producer=redirect)
        finally:
            _retry.reset(token)
    if not redirect.is_sent:
        raise PublishError(f"apply_async of {task.name} has published nothing.")


def _to_tier(delay: AppState, task: Task[Any, Any], tier_index: int, queue: str) -> tuple[Route, int | None]:
    ladder = delay.ladder(queue, task)
    tier_index = min(tier_index, len(ladder))
    task_id: Any = task.request.id
    lane = lane_of(task_id, ladder.lanes) if ladder.lanes > 1 else None
    plan = delay.plan(queue, reason_routing=True, tasks=False)
    return plan.route(tier_index, ladder.ttl(tier_index, lane)), lane
