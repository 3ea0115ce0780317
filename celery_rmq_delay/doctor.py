"""Look for what would keep failed tasks from waiting in the broker, and say what mends it. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from amqp.exceptions import AMQPError, ChannelError
from kombu.entity import Queue as KombuQueue
from kombu.exceptions import OperationalError

from .broker import Capabilities, capabilities
from .delay import delay_of
from .exceptions import ManagementError, TransportError
from .inventory import applied, connect, plans
from .management import Management, QueueDetail
from .names import suspects
from .topology.apply import ready_counts
from .topology.pending import ladder_text, pending

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from .delay import Delay
    from .topology.ladder import LadderPlan
    from .topology.switch import Applied

Severity = Literal["error", "warning", "note"]

_OLDEST = (3, 10, 0)
_NEGATIVE_IS_UNLIMITED = (4, 0, 0)
#: Deliveries beyond the ladder's retries: the first attempt, and one that a lost worker took.
_SPARE_DELIVERIES = 2


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    ``code`` is stable for scripts; ``subject`` the queue or other thing it is about. An ``error`` loses or stops
    retries, a ``warning`` makes them worse or hides something, a ``note`` needs nobody.
    """

    code: str
    severity: Severity
    subject: str
    found: str
    mend: str

    @property
    def needs_a_person(self) -> bool:
        """Whether somebody has to act."""
        return self.severity != "note"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dict(vars(self))


def examine(
    app: Celery, *, only: Iterable[str] = (), management_url: str | None = None, use_management: bool = True
) -> list[Finding]:
    """Return what is wrong with the app's broker and origin queues (with ``only`` some of them), the worst first.

    ``management_url``: see `Management.of`; ``use_management=False`` does without that API and what only it can tell.
    Raises `RmqDelayError` where `install` was not called.
    """
    delay = delay_of(app)
    with app.connection_for_read() as connection:
        found = list(_examine(delay, connection, only, management_url, use_management))
    order: list[Severity] = ["error", "warning", "note"]
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _examine(
    delay: Delay, connection: Connection, only: Iterable[str], management_url: str | None, use_management: bool
) -> Iterator[Finding]:
    try:
        connect(connection)
    except TransportError as error:
        yield Finding("transport", "error", "broker_url", str(error), "Use RabbitMQ, or do not call install().")
        return
    except (AMQPError, OperationalError) as error:
        mend = "Start the broker, or correct broker_url."
        yield Finding("unreachable", "error", connection.as_uri(), str(error), mend)
        return
    broker = capabilities(connection)
    yield from version_findings(broker)
    details: dict[str, QueueDetail] = {}
    if use_management:
        try:
            with Management.of(connection, management_url) as management:
                management.version()
                details = management.queues()
        except ManagementError as error:
            found, _, mend = str(error).partition(". ")
            mend = mend or "Without it policies and waiting dead letters stay unseen; --no-management leaves it out."
            yield Finding("management", "warning", "management API", found, mend)
    for plan in plans(connection, delay, only):
        yield from _queue_findings(connection, delay, plan, broker, details)
    yield from _exhausted(connection, delay)


def version_findings(broker: Capabilities) -> Iterator[Finding]:
    """Say what the broker's version means for the package."""
    text = ".".join(map(str, broker.version))
    if broker.version < _OLDEST:
        found = f"The broker says it is version {text}; the package is tested from 3.10 on."
        yield Finding("broker-version", "warning", "broker", found, "Upgrade RabbitMQ.")
    elif not broker.tells_death_reason:
        found = f"RabbitMQ {text} does not say why a message died: every death climbs the ladder, crash loops too."
        mend = "RabbitMQ 3.13 or later tells them apart; apply the topology again after the upgrade."
        yield Finding("broker-version", "note", "broker", found, mend)


def _queue_findings(
    connection: Connection, delay: Delay, plan: LadderPlan, broker: Capabilities, details: Mapping[str, QueueDetail]
) -> Iterator[Finding]:
    state = applied(connection, plan)
    counts = ready_counts(connection, [plan.queue, suspects(plan.queue)])
    if counts[plan.queue] is not None:
        yield from _dead_lettering(connection, delay, plan, details.get(plan.queue))
    yield from _drift(connection, plan, state)
    yield from limit_findings(plan, broker, _limit(delay, plan, details.get(plan.queue)))
    own = [plan.queue, suspects(plan.queue), *(queue.name for _, _, queue in plan.rung_queues(_ladders(plan, state)))]
    for name in own:
        waiting = details[name].dead_letters_waiting if name in details else 0
        if waiting:
            found = f"{waiting} dead letters wait in {name} because no queue has taken them."
            mend = "Look again in a minute; if they stay, run `celery -A proj rmq-delay apply`, or empty a full target."
            yield Finding("dead-letters-waiting", "warning", plan.queue, found, mend)
    if state.retired:
        found = f"{len(state.retired)} ladders are out of use and not yet removed."
        yield Finding("retired", "note", plan.queue, found, "Run `celery -A proj rmq-delay prune`.")
    if counts[suspects(plan.queue)]:
        found = f"{counts[suspects(plan.queue)]} messages may have killed a worker and wait to be tried alone."
        yield Finding("suspects", "note", plan.queue, found, "Workers take them one by one: see that one runs.")


def _ladders(plan: LadderPlan, state: Applied) -> list[Any]:
    return [*plan.ladders.values(), *state.ladders.values()]


def _dead_lettering(
    connection: Connection, delay: Delay, plan: LadderPlan, detail: QueueDetail | None
) -> Iterator[Finding]:
    """Compare an existing origin queue with its declaration: an active declare of what exists changes nothing."""
    channel = connection.channel()
    try:
        KombuQueue.queue_declare(delay.app.amqp.queues[plan.queue], channel=channel)
        return
    except ChannelError as error:
        problem = str(error.reply_text)
    finally:
        if channel.is_open:
            channel.close()
    exchange = plan.names.dlx(plan.queue)
    if detail is not None and detail.policy_definition.get("dead-letter-exchange") == exchange:
        found = f"The dead-letter exchange comes from the policy {detail.policy!r}; retries are still published."
        yield Finding("dlx-by-policy", "note", plan.queue, found, "Nothing: its failed tasks reach their delay queues.")
    elif "x-dead-letter" in problem or "x-overflow" in problem:
        found = f"It exists without our dead-letter exchange: every retry costs a publish with confirm. {problem}"
        mend = f"Drain and delete it, then run `celery -A proj rmq-delay apply`. Its exchange is {exchange}."
        yield Finding("dlx-missing", "warning", plan.queue, found, mend)
    else:
        mend = "Declare it in task_queues with the arguments that it has, or drain, delete and declare it again."
        yield Finding("queue-arguments", "warning", plan.queue, f"It exists with other arguments. {problem}", mend)


def _drift(connection: Connection, plan: LadderPlan, state: Applied) -> Iterator[Finding]:
    apply_it = "Run `celery -A proj rmq-delay apply`, or start a worker."
    waiting = pending(connection, plan, state)
    for each in waiting.conflicts:
        found = f"The {each.kind} {each.name} is not as planned. {each.problem}"
        mend = "Drain and delete it, then run `celery -A proj rmq-delay apply`."
        yield Finding("conflict", "error", plan.queue, found, mend)
    if waiting.create:
        listed = ", ".join(each.name for each in waiting.create[:3]) + (", ..." if waiting.create[3:] else "")
        found = f"{len(waiting.create)} exchanges or queues are missing: {listed}."
        yield Finding("missing", "error", plan.queue, found, apply_it)
    if waiting.ladder:
        before, after = map(ladder_text, waiting.ladder)
        found = f"The ladder in force is {before}; the settings say {after}."
        yield Finding("ladder", "warning", plan.queue, found, apply_it)
    if waiting.tasks:
        found = f"Tasks climb other ladders than planned: {', '.join(waiting.tasks)}."
        yield Finding("task-ladders", "warning", plan.queue, found, apply_it)
    if waiting.routing or waiting.unfinished:
        found = "A change of ladders was cut off." if waiting.unfinished else "The broker has another version now."
        yield Finding("unfinished", "warning", plan.queue, found, apply_it)


def _limit(delay: Delay, plan: LadderPlan, detail: QueueDetail | None) -> int | None:
    """Return the delivery limit that somebody set on an origin queue; None where it is the broker's default."""
    declared = dict(delay.app.amqp.queues[plan.queue].queue_arguments or {})
    limits = [(detail.arguments if detail else declared).get("x-delivery-limit")]
    limits += [detail.policy_definition.get("delivery-limit")] if detail else []
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def limit_findings(plan: LadderPlan, broker: Capabilities, limit: int | None) -> Iterator[Finding]:
    """Say whether a delivery limit takes messages from the ladder before it ends."""
    if plan.queue_type != "quorum" or limit is None or (limit < 0 and broker.version >= _NEGATIVE_IS_UNLIMITED):
        return
    needed = max(len(ladder) for ladder in plan.ladders.values()) + _SPARE_DELIVERIES
    if limit < needed:
        zero = " (before RabbitMQ 4.0 a negative limit is 0)" if limit < 0 else ""
        found = f"Its delivery limit is {limit}{zero}; its ladder needs {needed}: messages exhaust early."
        mend = f"Set x-delivery-limit, or the policy's delivery-limit, to {needed} or more."
        yield Finding("delivery-limit", "error", plan.queue, found, mend)


def _exhausted(connection: Connection, delay: Delay) -> Iterator[Finding]:
    name = delay.settings.exhausted_queue
    count = ready_counts(connection, [name])[name]
    if count:
        mend = "Look at them with `celery -A proj rmq-delay exhausted list`, then requeue or discard."
        yield Finding("exhausted", "note", name, f"{count} messages are out of retries.", mend)
