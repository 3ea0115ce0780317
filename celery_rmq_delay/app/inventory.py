"""The origin queues of an app, and the records of their ladders in the broker."""

from __future__ import annotations

from collections.abc import Iterable

from kombu import Connection

from ..amqp.apply import ready_counts
from ..amqp.capabilities import capabilities
from ..amqp.connections import shorten_waits, tolerant
from ..amqp.record import read_record
from ..exceptions import RmqDelayError, TransportError
from ..stopping import shorten_at_stop
from ..topology.applied import Applied
from ..topology.ladder import LadderPlan
from ..topology.transition import unrecorded
from .state import AppState


def origin_queues(delay: AppState, only: Iterable[str] = (), connection: Connection | None = None) -> list[str]:
    """Return the names of the app's origin queues, sorted; only those in ``only``, if any.

    They are the queues that the app declares, those its tasks are routed to and those its settings name. Raises
    `RmqDelayError` for a name in ``only`` that can have no ladder, and with a ``connection`` for a queue that exists
    neither in the app nor in the broker.
    """
    app, wanted = delay.app, list(only)
    delay.finalize()
    queues = app.amqp.queues
    unknown = [name for name in wanted if name not in queues and name not in delay.settings.queues]
    if unknown and connection is not None:
        _refuse_missing(connection, unknown, sorted(queues))
    routed = filter(None, map(delay.routed_to, app.tasks.values()))
    for name in (*routed, *(name for name, own in delay.settings.queues.items() if own is not None), *wanted):
        if name not in queues and queues.create_missing:
            queues.add(queues.new_missing(name))
    found = delay.origin_queues()
    for name in wanted:
        if name not in found:
            raise RmqDelayError(
                f"Queue {name!r} has no ladder: it is unknown to the app, left alone by rmq_delay.queues, not durable, "
                f"or dead-letters elsewhere. With a ladder: {', '.join(found) or 'none'}."
            )
    return [name for name in found if name in wanted] if wanted else found


def plans(connection: Connection, delay: AppState, only: Iterable[str] = ()) -> list[LadderPlan]:
    """Return the plans of the app's origin queues. Raises `TransportError` if the broker is not an AMQP broker."""
    require_amqp(connection)
    routing = capabilities(connection).reports_death_reason
    return [delay.plan(name, reason_routing=routing) for name in origin_queues(delay, only, connection)]


def _refuse_missing(connection: Connection, names: list[str], known: list[str]) -> None:
    for name, count in ready_counts(connection, names).items():
        if count is None:
            raise RmqDelayError(
                f"Queue {name!r}: neither the app nor the broker has a queue of this name. The app has "
                f'{", ".join(known) or "none"}. To apply its ladder before it is declared, name it in "queues" of the '
                "settings."
            )


def applied(connection: Connection, plan: LadderPlan) -> Applied:
    """Return the applied ladders of a queue: from the record in the broker, or from its objects if there is none."""
    found = read_record(connection, plan.record_queue())
    return unrecorded(connection, plan) if found is None else Applied.from_json(found)


def connect(connection: Connection) -> None:
    """Connect to one of the given brokers, with at most two tries each: commands do not wait for a broker."""
    require_amqp(connection)
    connection.transport_options = tolerant(connection.transport_options)
    hosts = len(connection.alt or [""])
    # The stubs want whole seconds, kombu takes any.
    connection.ensure_connection(max_retries=2 * hosts - 1, interval_start=0.1, interval_step=0.1)  # type: ignore[arg-type]
    shorten_at_stop(connection, shorten_waits)


def require_amqp(connection: Connection) -> None:
    """Raise `TransportError` where the app's broker is not an AMQP broker."""
    driver = connection.get_transport_cls().driver_type  # an instance may need a library that is missing
    if driver != "amqp":
        raise TransportError(
            f"The broker's transport is {driver!r}: only RabbitMQ supports delay queues. Use an amqp:// broker_url."
        )
