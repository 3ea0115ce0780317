"""The lab of the broker tests: an origin queue, and messages to publish, reject and count."""

import itertools
import time
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

import amqp
import kombu

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.amqp.capabilities import broker_version, capabilities
from celery_rmq_delay.amqp.confirms import publisher_on
from celery_rmq_delay.amqp.copies import nack_log_error
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.headers import Headers, deaths
from celery_rmq_delay.ladders import Ladder, QueueType
from celery_rmq_delay.names import Names, moving
from celery_rmq_delay.topology.common import origin_arguments
from celery_rmq_delay.topology.ladder import LadderPlan
from celery_rmq_delay.topology.transition import apply_plan
from tests.support.waiting import wait_for

HOUR = 3_600_000


class Advanced(NamedTuple):
    """A delivery of a message: its routing key, the delay queue it came from, and the seconds since the last one."""

    key: str
    queue: str | None
    seconds: float


def contents(message: amqp.Message) -> bytes:
    return message.body if isinstance(message.body, bytes) else message.body.encode()


class Lab:
    """A prefix of its own on the test's broker, deleted with all under it at the end."""

    def __init__(self, url: str, queue_type: QueueType) -> None:
        self.url, self.queue_type = url, queue_type
        self.names = Names(f"t{uuid.uuid4().hex[:10]}")
        self._numbers = itertools.count()
        self._connections: list[kombu.Connection] = []
        self._queues: dict[str, None] = {}
        self._exchanges: dict[str, None] = {}
        self.connection = self.connect()
        self.channel: amqp.Channel = self.connection.channel()
        self.version = broker_version(self.connection)
        self.reports_death_reason = capabilities(self.connection).reports_death_reason

    def connect(self) -> kombu.Connection:
        connection = kombu.Connection(self.url)
        connection.ensure_connection(max_retries=3)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        with kombu.Connection(self.url) as connection:
            channel = connection.channel()
            for queue in self._queues:
                channel.queue_delete(queue)
            for exchange in self._exchanges:
                channel.exchange_delete(exchange)

    def reopen(self) -> None:
        """Close the channel, which returns its messages, and open another one."""
        self.channel.close()
        self.channel = self.connection.channel()

    # -- making things ---------------------------------------------------------------------------------------------

    def plan(self, ladder: Ladder, tasks: dict[str, Ladder | None] | None = None, **changes: Any) -> LadderPlan:
        """Return a plan for the lab's queue (or ``queue=``), whose objects are deleted at the end."""
        plan = LadderPlan(
            **{
                "names": self.names,
                "queue": f"{self.names.prefix}-q",
                "queue_type": self.queue_type,
                "exhausted": f"{self.names.prefix}.exhausted",
                "ladder": ladder,
                "tasks": tasks or {},
                "reason_routing": self.reports_death_reason,
                **changes,
            }
        )
        objects = plan.objects()
        queues = (*objects.queues, plan.record_queue(), plan.exhausted_queue())
        self.forget(plan.queue, *(queue.name for queue in queues), exchanges=[each.name for each in objects.exchanges])
        self.forget(moving(plan.record_queue().name))
        return plan

    def forget(self, *queues: str, exchanges: Iterable[str] = ()) -> None:
        """Delete these at the end."""
        self._queues.update(dict.fromkeys(queues))
        self._exchanges.update(dict.fromkeys(exchanges))

    def origin(self, plan: LadderPlan, **more: Any) -> str:
        """Declare the plan's origin queue with its dead-letter exchange."""
        return self.queue(plan.queue, **{**origin_arguments(plan.names, plan.queue, plan.queue_type), **more})

    def queue(self, name: str | None = None, **arguments: Any) -> str:
        """Declare a queue, by default of the lab's type."""
        name = name or f"{self.names.prefix}-{next(self._numbers)}"
        declared = {"x-queue-type": self.queue_type, **arguments}
        options = {"durable": True, "auto_delete": False, "arguments": declared}
        try:
            self.channel.queue_declare(name, **options)
        except amqp.InternalError:  # RabbitMQ 3.10 on a busy machine, where a quorum queue takes seconds to start
            self.connection = self.connect()
            self.channel = self.connection.channel()
            self.channel.queue_declare(name, **options)
        self.forget(name)
        return name

    def exchange(self, kind: str) -> str:
        name = f"{self.names.prefix}-x{next(self._numbers)}"
        self.channel.exchange_declare(name, kind, durable=True, auto_delete=False)
        self.forget(exchanges=[name])
        return name

    def applied(self, plan: LadderPlan, **origin: Any) -> LadderPlan:
        self.origin(plan, **origin)
        apply_plan(self.connection, plan)
        return plan

    # -- messages --------------------------------------------------------------------------------------------------

    def publish(
        self, queue: str, body: str = "body", *, exchange: str = "", headers: Headers | None = None, **properties: Any
    ) -> None:
        """Publish to a queue, or to an exchange with ``queue`` as the routing key."""
        message = amqp.Message(body, delivery_mode=2, application_headers=dict(headers or {}), **properties)
        publisher_on(self.channel).send(message, Route(exchange, queue))

    def get(self, queue: str, *, ack: bool = False) -> amqp.Message:
        """Return the next message of ``queue``, waiting for it."""
        return wait_for(lambda: self.channel.basic_get(queue, no_ack=ack), f"a message in {queue}")

    def reject(self, message: amqp.Message) -> None:
        self.channel.basic_reject(message.delivery_tag, requeue=False)

    def requeue(self, message: amqp.Message, kind: str = "returned") -> None:
        """Requeue a message: with ``basic.nack`` it is returned, with ``basic.reject`` it failed."""
        if kind == "returned":
            nack_log_error(message, ())
        else:
            self.channel.basic_reject(message.delivery_tag, requeue=True)

    def first_of(self, *queues: str) -> tuple[str, amqp.Message]:
        """Return (queue, message) of the first message in any of the queues."""

        def look() -> tuple[str, amqp.Message] | None:
            for queue in queues:
                if message := self.channel.basic_get(queue):
                    return queue, message
            return None

        found: tuple[str, amqp.Message] = wait_for(look, f"a message in {queues}")
        return found

    def advance(self, plan: LadderPlan, rounds: int = 50) -> list[Advanced]:
        """Reject the one message of the plan's queue until it is exhausted, or so often; return its deliveries."""
        seen, rejected = list[Advanced](), 0.0
        for _ in range(rounds):
            queue, message = self.first_of(plan.queue, plan.exhausted)
            last = next((each for each in deaths(message.headers) if each["reason"] == "expired"), {})
            away = time.monotonic() - rejected if rejected else 0.0
            seen.append(Advanced(message.delivery_info["routing_key"], last.get("queue"), away))
            if queue == plan.exhausted:
                self.channel.basic_ack(message.delivery_tag)
                return seen
            rejected = time.monotonic()
            self.reject(message)
        self.channel.basic_ack(self.get(plan.queue).delivery_tag)
        return seen

    def counts(self, *plans: LadderPlan) -> dict[str, int]:
        """Return the ready messages of the delay queues and exhausted queues of the plans, those with any."""
        names = {queue.name for plan in plans for _, _, queue in plan.delay_queues(plan.ladders.values())}
        names |= {plan.exhausted for plan in plans}
        return {name: count for name, count in ready_counts(self.connection, sorted(names)).items() if count}
