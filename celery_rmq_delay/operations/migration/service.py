"""The function `migrate` behind the command ``rmq-delay migrate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from kombu import Connection

from ...amqp.apply import exchange_exists, ready_counts
from ...amqp.objects import Queue
from ...app.inventory import origin_queues
from ...app.state import AppState
from ...exceptions import ManagementError, RmqDelayError, SelectionError
from ...ladders import QueueType
from ...management.client import Management
from ...names import Names
from ...settings.values import MOST_LEVELS
from ...topology.common import managed_queue_arguments
from ...topology.exact.base import Options
from ..celery_native_delay import ENTRY, check_unused, remove
from ..results import poll
from .address import Source, source
from .mover import IDLE, SETTLE, WINDOW, Mover, Report
from .targets import Copier, DelayTarget, target

CELERY_NATIVE = "celery-native"


@dataclass(frozen=True)
class Request:
    """The options of a migration.

    ``to`` None is the exact delays of the settings. ``only``: messages for these queues. ``source_queues``: the queues
    of `hold`. ``prefix``, ``unit_ms`` and ``queue_type`` are the source's, if the settings have others now.
    ``remove``: delete the empty objects of ``celery-native`` afterwards. ``management_url`` and ``use_management``: see
    `Management.of`.
    """

    source: str
    to: str | None = None
    only: tuple[str, ...] = ()
    source_queues: tuple[str, ...] = ()
    prefix: str | None = None
    unit_ms: int | None = None
    queue_type: QueueType | None = None
    limit: int | None = None
    dry_run: bool = False
    remove: bool = False
    management_url: str | None = None
    use_management: bool = True

    def check(self) -> None:
        """Raise `SelectionError` for options that exclude each other."""
        if self.remove and self.source != CELERY_NATIVE:
            raise SelectionError("--remove is for --from celery-native: prune deletes managed queues, or they expire.")
        if self.remove and (self.dry_run or self.only or self.limit):
            raise SelectionError("--remove moves all messages first: leave out --dry-run, --queue and --limit.")
        if self.source_queues and self.source != "hold":
            raise SelectionError("--source-queue is for --from hold, whose queues AMQP cannot list.")


def migrate(
    delay: AppState, connection: Connection, request: Request, *, stopped: Callable[[], bool] = bool,
    begun: Callable[[int], Callable[[int], object]] = lambda _before: bool, window: int = WINDOW,
) -> Report:  # fmt: skip
    """Move waiting messages; return the counts.

    ``stopped`` is asked often, and ends the run after the window under way. ``begun`` gets the number of messages there
    are, and returns what is to be called with the number of each that were handled. Raises `RmqDelayError`.
    """
    request.check()
    origin_queues(delay)  # makes all queues of the app known
    if request.remove:
        check_unused(delay)
    into = target(request.to, delay, connection)
    out_of = source(
        request.source, delay, connection, _options(delay, request), retired_only=into.name == "ladder",
        named=request.source_queues, management_url=request.management_url,
    )  # fmt: skip
    _check_apart(out_of, into, request)
    report = Report(request.source, into.name, request.dry_run)
    copier = Copier(connection, out_of, into, poison_queue(delay), request.only)
    with _arrivals(connection) if request.source == CELERY_NATIVE else nullcontext(lambda: None) as entered:
        report.before = _total(connection, out_of)
        mover = Mover(
            connection, out_of, copier, report, window=window, limit=request.limit, stopped=stopped,
            progress=begun(report.before),
        )  # fmt: skip
        if request.dry_run:
            mover.inspect()
        else:
            mover.run()
        left = report.before - (0 if request.dry_run else report.taken)
        # The broker's counts need time to reflect the last acks.
        report.after = poll(SETTLE, lambda: _total(connection, out_of), IDLE, until=lambda count: count == left)
        report.arrived = entered()
    if request.remove:
        report.removed = _remove(delay, connection, request, report)
    return report


def _total(connection: Connection, source: Source) -> int:
    return sum(count or 0 for count in ready_counts(connection, source.queues).values())


def poison_queue(delay: AppState) -> Queue:
    """Return the queue for messages without a readable address."""
    return Queue(f"{delay.settings.prefix}.migrate.poison", managed_queue_arguments(delay.exact.queue_type))


def _options(delay: AppState, request: Request) -> Options:
    known = delay.exact.options
    return replace(
        known,
        names=known.names if request.prefix is None else Names(request.prefix),
        queue_type=request.queue_type or known.queue_type,
        unit_ms=request.unit_ms or known.unit_ms,
        levels=MOST_LEVELS,
    )


def _check_apart(out_of: Source, into: DelayTarget, request: Request) -> None:
    shared = sorted(into.queues().intersection(out_of.queues))
    if shared or (out_of.name == into.name == "hold" and request.prefix is None):
        raise RmqDelayError(
            f"Source and target are the same queues ({', '.join(shared[:2]) or into.name}): specify former settings "
            "of the source with --source-prefix, --source-unit or --source-type, or choose another --to."
        )


def _remove(delay: AppState, connection: Connection, request: Request, report: Report) -> list[str]:
    if report.interrupted or report.left or report.after:
        return []
    if report.arrived:
        raise RmqDelayError(
            f"{report.arrived} messages were published to Celery's levels while they were emptied: a publisher or "
            "worker without this package, or without exact_for='all', still runs. Stop it and run the command again; "
            "nothing was removed."
        )
    details = None
    if request.use_management:
        try:
            with Management.of(connection, request.management_url, delay.settings.management_url) as management:
                details = management.queues()
        except ManagementError as error:
            raise ManagementError(
                f"{error} Only that API reports dead letters that no queue takes, which would be lost; "
                "--no-management skips this check."
            ) from error
    return remove(connection, delay.app, details)


@contextmanager
def _arrivals(connection: Connection) -> Iterator[Callable[[], int]]:
    """Yield a function that returns how many messages have entered Celery's levels in the block.

    A temporary queue behind the entry counts them. Behind the exit it would take messages that match no other queue,
    and they would be lost with it.
    """
    if not exchange_exists(connection, ENTRY):
        yield lambda: 0
        return
    with connection.channel() as channel:
        queue = channel.queue_declare(exclusive=True, auto_delete=True).queue
        channel.queue_bind(queue, ENTRY, "#")
        try:
            yield lambda: int(channel.queue_declare(queue, passive=True).message_count)
        finally:
            if channel.is_open:
                channel.queue_delete(queue)
