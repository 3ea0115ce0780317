"""The forward path of a changed retry: a new message to its delay queue, with confirm, from where the task runs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from amqp.exceptions import MessageNacked
from kombu import Exchange, Queue
from kombu.pools import producers

from .broker import CONFIRM_TIMEOUT, mandatory
from .delivery import KEY, Delivery
from .exceptions import NackedError, OutcomeUnknownError
from .headers import EXCHANGE, FIRST_FAILED, LANE, RETRIES, ROUTING_KEY, timestamp, without_dead_letters
from .ladders import lane_of
from .topology.apply import declare
from .topology.objects import Exchange as ReturnExchange
from .topology.objects import Objects

if TYPE_CHECKING:
    from celery import Task

    from .delay import Delay

_ROUTE_OPTIONS = ("exchange", "routing_key", "queue", "countdown", "eta")


def publish_retry(
    delay: Delay, task: Task[Any, Any], delivery: Delivery, signature: Any, rung: int, queue: str
) -> None:
    """Publish ``signature`` to the delay queue of ``rung`` of ``queue``; when this returns the broker has it.

    Blocks until the confirm, so it belongs into the task's process. Raises `PublishError`.
    """
    options = dict(signature.options)
    request: Any = task.request  # of a message, so that it has an id
    apply_async: Any = task.apply_async  # the stubs lack kombu's options
    ladder = delay.ladder(queue, task)
    rung = min(rung, len(ladder))
    lane = lane_of(request.id, ladder.lanes) if ladder.lanes > 1 else None
    plan = delay.plan(queue, reason_routing=True, tasks=False)
    delay_queue = plan.rung_queue(rung, ladder.ttl(rung, lane))
    # Celery takes every header it does not know for the task's own: the broker's and ours are among them.
    headers = without_dead_letters(options.pop("headers", None) or {})
    headers.pop(KEY, None)
    headers.setdefault(RETRIES, 0)
    headers.setdefault(FIRST_FAILED, timestamp(datetime.now(timezone.utc)))
    if queue == delivery.queue:
        route = request.delivery_info or {}
        headers |= {EXCHANGE: route.get("exchange") or "", ROUTING_KEY: route.get("routing_key") or queue}
    if lane is not None:
        headers[LANE] = lane
    for name in _ROUTE_OPTIONS:
        options.pop(name, None)
    connection = task.app.connection_for_write(transport_options={"confirm_publish": True})
    with producers[connection].acquire(block=True) as producer:
        channel = producer.channel
        declare(
            channel,
            Objects((ReturnExchange(plan.names.returns, "direct"),), (delay_queue,), (plan.return_binding(rung),)),
        )
        with mandatory(channel):
            try:
                apply_async(
                    signature.args,
                    signature.kwargs,
                    **options,
                    queue=Queue(delay_queue.name, Exchange(""), delay_queue.name),
                    declare=[],
                    headers=headers,
                    producer=producer,
                    mandatory=True,
                    confirm_timeout=CONFIRM_TIMEOUT,
                )
            except MessageNacked as error:
                raise NackedError(f"The broker refused a retry for {delay_queue.name!r}.") from error
            except TimeoutError as error:
                raise OutcomeUnknownError(f"No confirm for {delay_queue.name!r} in {CONFIRM_TIMEOUT:g} s.") from error
