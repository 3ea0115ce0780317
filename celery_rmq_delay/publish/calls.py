"""Calls with a ``countdown`` or an ``eta``, which the broker holds instead of a worker."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from celery.utils import uuid
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from ..app.state import AppState, is_retryable
from ..durations import aware_eta, until_ms, whole_ms
from ..headers import LANE, exact_address
from ..ladders import lane_of
from .forward import Redirect, confirming, pooled, retry_of


class SendTask:
    """`Celery.send_task` of an app, which publishes all task messages.

    A call with a delay, also of 0, is published for the queue that it is routed to, not to the queue's exchange. Where
    its options name an exchange that does not determine exactly one queue of the app, it is published there at once
    with its eta, and the worker that receives it parks it. Where ladders have jitter, every message gets its task's
    lane.
    """

    def __init__(self, app: Celery, delay: AppState) -> None:
        self._app, self._delay = app, delay

    def __call__(
        self, name: str, args: Any = None, kwargs: Any = None, countdown: Any = None, eta: Any = None, **options: Any
    ) -> Any:
        """Send the task. Raises `DelayError` for an invalid delay, `SettingsError` for a task of another app."""
        if is_retryable(task := self._task(name, options)):
            self._delay.check_borrowed(task)
        retry = retry_of(options.get("task_id"))
        if retry is not None:  # its class may have replaced the producer, or added a delay
            given = {key: each for key, each in options.items() if key not in ("connection", "publisher")}
            return self._send(name, args, kwargs, **{**given, "producer": retry})
        if (countdown is None and eta is None) or not self._holds(name, options):
            return self._send(name, args, kwargs, countdown=countdown, eta=eta, **options)
        what, found = ("eta", eta) if eta is not None else ("countdown", countdown)
        due = aware_eta(self._app, eta) if eta is not None else None
        delay_ms = whole_ms(countdown, "countdown") if due is None else until_ms(due)
        queue = self._destination(name, args, kwargs, options)
        if queue is None and not delay_ms:
            return self._send(name, args, kwargs, **options)
        if queue is None:
            due = due or datetime.now(timezone.utc) + timedelta(milliseconds=delay_ms)
            headers = {**(options.pop("headers", None) or {}), "eta": due.isoformat()}
            return self._send(name, args, kwargs, headers=headers, **options)
        producer = options.pop("producer", None) or options.pop("publisher", None)
        connection = options.pop("connection", None) or getattr(producer, "connection", None)
        with confirming(self._app, connection) as producer:
            route = self._delay.exact.route(producer.connection, delay_ms, queue, what, found)
            return self._send(name, args, kwargs, producer=Redirect(producer, self._delay.exact, route), **options)

    def _send(self, *args: Any, **options: Any) -> Any:
        if self._delay.settings.uses_jitter:
            task_id = options["task_id"] = options.get("task_id") or uuid()
            lane = lane_of(task_id, self._delay.settings.lanes)
            options["headers"] = {**(options.get("headers") or {}), LANE: lane}
        amqp: Any = self._app.amqp
        if not isinstance(amqp.send_task_message, _WithoutTtl):
            amqp.send_task_message = _WithoutTtl(amqp.send_task_message, self._delay)
        # Resolved for each call: monitoring tools wrap the method of the class, often after `install`.
        return type(self._app).send_task(self._app, *args, **options)

    def _holds(self, name: str, options: dict[str, Any]) -> bool:
        if not (self._delay.settings.exact.every_task or is_retryable(self._task(name, options))):
            return False
        return bool(pooled(self._app).transport.driver_type == "amqp")

    def _task(self, name: str, options: dict[str, Any]) -> Any:
        known: Any = self._app  # the stubs lack the registry that does not finalize the app
        return options.get("task_type") or known._tasks.get(name)

    def _destination(self, name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> str | None:
        """Return the only queue that a call is routed to; None where it cannot be determined."""
        if came_for := self._came_for(options):
            return came_for
        task = self._task(name, options)
        defaults = task._get_exec_options() if task is not None and options.get("task_type") is None else {}
        given = {**{key: value for key, value in (defaults or {}).items() if value is not None}, **options}
        router = options.get("router") or self._app.amqp.router
        routed = router.route(dict(given), options.get("route_name") or name, args, kwargs, task)
        exchange, key, queue = routed.get("exchange"), routed.get("routing_key"), routed.get("queue")
        if isinstance(queue, str):
            queue = self._app.amqp.queues[queue]
        elif queue is None:
            queue = self._app.amqp.default_queue
        # The same decision as in `celery.app.amqp.AMQP.send_task_message`.
        kind = routed.get("exchange_type") or getattr(queue.exchange, "type", None) or "direct"
        if exchange and (key or kind != "direct"):
            return self._one_queue(exchange, key or "")
        if key and kind != "direct" and given.get("queue") is None and queue.name == self._app.conf.task_default_queue:
            return self._one_queue(queue.exchange.name, key)
        if options.get("queue") is None:
            options["queue"] = queue  # a router may choose another queue if it is called again
            if options.get("priority") is None:  # as Celery's router does where no queue is named: kombu sends 0 then
                options.pop("priority", None)
        return self._usable(queue)

    def _came_for(self, options: dict[str, Any]) -> str | None:
        """Return the queue of a task of Celery's own class that is retried after an exact delay."""
        found = exact_address(options.get("headers") or {})
        exchange = options.get("exchange") or ""
        name: str = getattr(exchange, "name", exchange)
        ours = not name or name.startswith(f"{self._delay.settings.prefix}.")
        return found[0] if found and ours and options.get("queue") is None else None

    def _one_queue(self, exchange: str | Exchange, key: str) -> str | None:
        name: Any = getattr(exchange, "name", exchange)
        queues = self._app.amqp.queues.values()
        found = [queue for queue in queues if takes(queue, name, key)]
        return self._usable(found[0]) if len(found) == 1 else None

    def _usable(self, queue: Queue) -> str | None:
        """Return the queue's name; None for a temporary or excluded queue."""
        if isinstance(queue, Broadcast) or not queue.durable or queue.auto_delete or queue.exclusive:
            return None
        name: str = queue.name
        return None if self._delay.settings.for_queue(name) is None else name


class _WithoutTtl:
    """Celery's function that publishes a task message, without a TTL where it has the header ``expires``.

    By the TTL the broker would dead-letter it, and no worker would revoke and report its task.
    """

    def __init__(self, send: Callable[..., Any], delay: AppState) -> None:
        self._send, self._delay = send, delay

    def __call__(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        queue = options.get("queue")
        is_ours = self._delay.settings.for_queue(getattr(queue, "name", queue) or "") is not None
        if is_ours and message.headers.get("expires"):  # protocol 1 has it in the body: its TTL stays
            options.pop("expiration", None)
        return self._send(producer, name, message, **options)


def takes(queue: Queue, exchange: str, key: str) -> bool:
    """Return whether a queue, as declared by the app, receives messages of ``exchange`` with this routing key."""
    bindings = [(queue.exchange, queue.routing_key), *((each.exchange, each.routing_key) for each in queue.bindings)]
    return any(
        each is not None and each.name == exchange and _matches(each.type, bound, key) for each, bound in bindings
    )


def _matches(kind: str, bound: str | None, key: str) -> bool:
    if kind == "topic":
        return matches_topic(bound or "", key)
    return kind == "fanout" or (kind == "direct" and (bound or "") == key)


def matches_topic(pattern: str, key: str) -> bool:
    """Return whether a topic exchange matches the routing key ``key`` for a binding with ``pattern``."""
    words = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    expression = "".join(words.get(word, rf"\.{re.escape(word)}") for word in pattern.split("."))
    return re.fullmatch(expression, f".{key}") is not None
