"""The state that `install` attaches to an app: its settings, and the state of its queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.app.routes import MapRoute
from kombu.common import Broadcast
from kombu.entity import Queue as KombuQueue
from kombu.utils.imports import symbol_by_name

from ..exceptions import RmqDelayError, SettingsError
from ..ladders import Ladder, QueueType
from ..names import delay_queue
from ..settings.values import NOT_SET, Settings, check_max_retries, check_queue_name
from ..topology.applied import Adoption
from ..topology.ladder import LadderPlan
from ..topology.native_retry import NativeRetry
from .exact import ExactDelays

if TYPE_CHECKING:
    from celery import Task


logger = logging.getLogger(__name__)

#: The attribute of an app that holds its state.
ATTRIBUTE = "_rmq_delay"
#: A quorum queue drops or dead-letters messages at its delivery limit (20 by default), and RabbitMQ 4.3 counts our
#: rejections: a message is published again before it reaches the limit.
_DELIVERY_LIMIT = 20

_FUNCTIONS = (
    "task_routes has functions, which name a queue only for a call: tasks that reach one count as routed to any queue. "
    "A queue that only a function names is known if task_queues or %s.queues has it."
)
_SETTLED = "A failed task's message is parked or exhausted, and acked when RabbitMQ has it there"
_COUNTED = "A lost process is a failed attempt, and the message waits for its next tier"
_BOTH = "A worker parks a failed task's message with the package's own request and strategy"
#: The request and the strategy of a `RetryableTask`, which only workers import.
REQUEST = "celery_rmq_delay.worker.request:RetryableRequest"
STRATEGY = "celery_rmq_delay.worker.strategy:strategy"
#: Options of a task with only one valid value, and why.
NEEDED = (
    ("acks_late", True, "A message that is acked before its task runs cannot be parked"),
    ("acks_on_failure_or_timeout", True, _SETTLED),
    ("acks_on_failure", True, _SETTLED),
    ("acks_on_timeout", True, _SETTLED),
    ("reject_on_worker_lost", False, _COUNTED),
    ("retry_on_worker_lost", False, _COUNTED),
)


class AppState:
    """The package's state of one app."""

    def __init__(self, app: Celery, settings: Settings, setting: str = "rmq_delay") -> None:
        self.app, self.settings = app, settings
        #: The name of the setting as the user wrote it.
        self.setting = setting
        #: Queues with other arguments than planned, or unknown: their retries take the forward path, unless adopted.
        self.differing: set[str] = set()
        #: The types of those queues, where known: AMQP does not report them, but the refusal of a declaration may.
        self.differing_type: dict[str, QueueType] = {}
        #: The adoptions of those queues that were adopted, or detached since.
        self.adopted: dict[str, Adoption] = {}
        #: A worker's callback for a queue that is declared while it runs.
        self.on_declared: Callable[[str], None] | None = None
        #: Whether a task is checked when it is bound; otherwise `check_tasks` follows.
        self.checks_bound = True
        #: The names of the tasks that another app has declared: see `Finalize`.
        self.borrowed: set[str] = set()
        #: The names of those that were checked, since they were called or received.
        self._checked: set[str] = set()
        #: Whether the log has the note on functions that route tasks.
        self._has_noted_functions = False
        self._ladders: dict[tuple[str, str], Ladder | None] = {}

    @contextmanager
    def apart(self, settings: Settings) -> Iterator[None]:
        """Use other settings, without any broker state, during the block: for tests."""
        before = dict(vars(self))
        vars(self).pop("exact", None)
        AppState.__init__(self, self.app, settings, self.setting)
        self.borrowed = before["borrowed"]
        try:
            yield
        finally:
            vars(self).clear()
            vars(self).update(before)

    @cached_property
    def exact(self) -> ExactDelays:
        """The exact delays of the app's calls and retries."""
        return ExactDelays(self.settings, self.shared_queue_type)

    @property
    def shared_queue_type(self) -> QueueType:
        """The type of queues that belong to no single origin queue: as set, or that of the app's default queue."""
        default: QueueType = "quorum" if self.app.conf.get("task_default_queue_type") == "quorum" else "classic"
        return self.settings.default.queue_type or default

    def manages(self, queue: KombuQueue) -> bool:
        """Return whether a queue can have a ladder: a lasting classic or quorum queue that is not excluded."""
        return (
            not isinstance(queue, Broadcast)
            and queue.durable
            and not queue.auto_delete
            and not queue.exclusive
            and (queue.queue_arguments or {}).get("x-queue-type", "classic") in ("classic", "quorum")
            and self.settings.for_queue(queue.name) is not None
        )

    def has_ladder(self, name: str) -> bool:
        """Return whether a queue of this name can have a ladder; one that the app does not know is taken as lasting."""
        queue = self.app.amqp.queues.get(name)
        return self.settings.for_queue(name) is not None if queue is None else self.manages(queue)

    def dead_letters_elsewhere(self, queue: KombuQueue) -> bool:
        """Return whether the user has declared a queue with another dead-letter exchange."""
        declared = queue.queue_arguments or {}
        ours = self.settings.names.dlx(queue.name)
        return declared.get("x-dead-letter-exchange", ours) != ours or "x-dead-letter-routing-key" in declared

    def rejects(self, queue: str) -> bool:
        """Return whether a rejected message of ``queue`` advances: by the queue's arguments, or by our policy."""
        if queue not in self.differing:
            return True
        adoption = self.adopted.get(queue)
        return adoption is not None and adoption.in_force

    def learn(self, queue: str, adoption: Adoption | None) -> None:
        """Set the adoption from the queue's record; None where it has none."""
        if adoption is None:
            self.adopted.pop(queue, None)
        else:
            self.adopted[queue] = adoption

    def forget(self, queue: str) -> None:
        """Forget the state of a deleted queue."""
        self.differing.discard(queue)
        self.differing_type.pop(queue, None)
        self.adopted.pop(queue, None)

    def learned(self, queue: str) -> tuple[object, ...]:
        """Return a key of the state of a queue that can change after the setup of the app."""
        adoption = self.adopted.get(queue)
        generation = None if adoption is None else (adoption.generation, adoption.in_force)
        return queue in self.differing, self.differing_type.get(queue), generation

    def is_quorum(self, queue: str) -> bool:
        """Return whether an origin queue is a quorum queue: in the broker where that is known, else as declared."""
        adoption = self.adopted.get(queue)
        known = self.differing_type.get(queue) if adoption is None else adoption.queue_type
        return (known or self.queue_type(queue)) == "quorum"

    def queue_type(self, name: str, queue: KombuQueue | None = None) -> QueueType:
        """Return the declared type of an origin queue and its delay queues; an existing one may differ: `is_quorum`."""
        queue = queue or self.app.amqp.queues.get(name)
        settings = self.settings.for_queue(name)
        if settings is not None and settings.queue_type is not None:
            return settings.queue_type
        return "quorum" if ((queue and queue.queue_arguments) or {}).get("x-queue-type") == "quorum" else "classic"

    def dead_letters_refused(self, queue: str) -> bool:
        """Return whether the broker dead-letters what it refuses because this queue is full: each try adds a copy.

        A refusal alone does not show that it did: a node that is lost refuses, too, and keeps nothing. So the original
        stays, and is not tried again soon.
        """
        return self._declared(queue).get("x-overflow") == "reject-publish-dlx"

    def has_single_consumer(self, queue: str) -> bool:
        """Return whether the app declares a queue with a single active consumer."""
        return bool(self._declared(queue).get("x-single-active-consumer"))

    def _declared(self, queue: str) -> Mapping[str, Any]:
        known = self.app.amqp.queues.get(queue)
        return (known.queue_arguments if known else None) or {}

    def delay_queue(self, queue: str, tier_index: int, ttl_ms: int) -> str:
        """Return the name of the delay queue of a tier of an origin queue."""
        return delay_queue(queue, tier_index, ttl_ms, self.settings.prefix, self.queue_type(queue))

    def has_native_retry(self, queue: str) -> bool:
        """Return whether the settings leave the retries of an origin queue to RabbitMQ's native retry."""
        settings = self.settings.for_queue(queue)
        return settings is not None and settings.retry == "native"

    def native_retry(self, name: str, queue: KombuQueue | None = None) -> NativeRetry | None:
        """Return RabbitMQ's native retry of an origin queue; None where it is off or the queue is classic."""
        settings = self.settings.for_queue(name)
        if settings is None or settings.retry != "native" or self.queue_type(name, queue) != "quorum":
            return None
        return NativeRetry(settings.ladder)

    def ladder(self, queue: str, task: Task[Any, Any]) -> Ladder:
        """Return the ladder of ``task`` on ``queue``: its own, or the queue's."""
        key = (queue, task.name)
        if key not in self._ladders:
            self._ladders[key] = self.settings.task_ladder(queue, task)
        own = self._ladders[key]
        if own is not None:
            return own
        settings = self.settings.for_queue(queue) or self.settings.default
        return settings.ladder

    def budget(self, queue: str, task: Any) -> int | None:
        """Return how many retries ``task`` has on ``queue``; None where there is no limit."""
        own: Any = task.max_retries_set
        return self.ladder(queue, task).retries if own is NOT_SET else own

    def retryable_tasks(self) -> Iterable[Any]:
        """Return the app's tasks that have ladders, without those that another app has declared."""
        return [task for task in self.app.tasks.values() if is_retryable(task) and task.name not in self.borrowed]

    def tasks_of(self, queue: str) -> dict[str, Ladder | None]:
        """Return the app's retryable tasks with the ladder that ``queue`` binds for each; None is the queue's own."""
        return {
            task.name: self.settings.task_ladder(queue, task) if self.is_planned(queue, task) else None
            for task in self.retryable_tasks()
        }

    def routed_to(self, task: Task[Any, Any]) -> str | None:
        """Return the queue to which the app routes all calls of a task; None where a function needs the call."""
        own = getattr(task, "queue", None)
        name: str | None = getattr(own, "name", own) or self._static_route(task.name)
        return name if name in self.app.amqp.queues or self.app.amqp.queues.create_missing else None

    def _static_route(self, name: str) -> str | None:
        """Return the queue that ``task_routes`` names for a task without a call, or the app's default queue."""
        default: str = self.app.conf.task_default_queue
        for route in getattr(self.app.amqp.router, "routes", (None,)):
            if not isinstance(route, MapRoute):
                if not self._has_noted_functions:
                    self._has_noted_functions = True
                    logger.info(_FUNCTIONS, self.setting)
                return None
            if (found := route(name)) is not None:
                queue = found.get("queue", None if found else default)
                return getattr(queue, "name", queue)
        return default

    def is_planned(self, queue: str, task: Task[Any, Any]) -> bool:
        """Return whether the ladder of ``task`` is among those applied to ``queue``."""
        if getattr(task, "tiers", None) is None:
            return True
        return task.name not in self.borrowed and self.routed_to(task) in (None, queue)

    def rejections_allowed(self, queue: str) -> int:
        """Return how often a message may be rejected before it has to be published again."""
        declared, adoption = self._declared(queue), self.adopted.get(queue)
        limit: int = declared.get("x-delivery-limit", _DELIVERY_LIMIT)
        kind = declared.get("x-queue-type")
        if adoption is not None:
            limit = _DELIVERY_LIMIT if adoption.delivery_limit is None else adoption.delivery_limit
            kind = adoption.queue_type
        if kind != "quorum" or limit < 0:
            return 2**31
        return max(1, min(limit * 3 // 4, limit - 2))

    def plan(self, queue: str, *, reason_routing: bool, tasks: bool = True) -> LadderPlan:
        """Return the plan of one origin queue; without the ladders of tasks if not ``tasks``."""
        settings = self.settings.for_queue(queue)
        if settings is None:
            raise RmqDelayError(f"rmq_delay.queues[{queue!r}] is False: this queue is left alone.")
        own = self.tasks_of(queue) if tasks else {}
        check_queue_name(self.settings, queue, self.setting, own.values())
        return LadderPlan(
            names=self.settings.names,
            queue=queue,
            queue_type=self.queue_type(queue),
            exhausted=self.settings.exhausted_queue,
            ladder=settings.ladder,
            tasks=own,
            reason_routing=reason_routing,
        )

    def origin_queues(self) -> list[str]:
        """Return the names of all queues of the app that can have a ladder, sorted."""
        return sorted(name for name, queue in self.app.amqp.queues.items() if self.manages(queue))

    def finalize(self) -> None:
        """Import, bind and check the app's tasks: see `check_tasks`."""
        self.app.loader.import_default_modules()
        self.app.finalize()
        self.check_tasks()

    def check_tasks(self) -> None:
        """Raise `SettingsError` for tasks with an invalid setting: of the first one, with the other errors below it."""
        errors = []
        for task in self.retryable_tasks():
            try:
                self.check_task(task)
            except SettingsError as error:  # noqa: PERF203 - at the setup
                errors.append(error)
        if errors:
            first, *others = errors
            raise SettingsError(first.setting, first.found, "\n".join([first.hint, *map(str, others)])) from first

    def check_borrowed(self, task: Any) -> None:
        """Check a task that another app has declared, once: it is called or received here, with this app's ladders."""
        if task.name in self.borrowed and task.name not in self._checked:
            self._checked.add(task.name)
            self.check_task(task)

    def check_task(self, task: Any) -> None:
        """Raise `SettingsError` for invalid classes, options of acking, tiers or ``max_retries`` of a task."""
        self._check_classes(task)
        for name, needed, why in NEEDED:
            found = getattr(task, name, needed)
            if bool(found) is not needed:
                raise SettingsError(f"{name} of task {task.name}", found, f"{why}: leave {name} out.")
        of_retry = (getattr(task, "retry_kwargs", None) or {}).get("max_retries", NOT_SET)
        if task.max_retries_set is of_retry is NOT_SET and task.tiers is None:
            return
        errors = [self._error_on(queue, task, of_retry) for queue in self._possible_queues(task)]
        if all(errors):  # a call that is routed to one of the other queues is right
            raise next(filter(None, errors))

    def _possible_queues(self, task: Any) -> list[str]:
        """Return the queue of a task; if calls decide, one with each ladder of the settings, the default one first."""
        if found := self.routed_to(task):
            return [found]
        return [self.app.conf.task_default_queue, *(name for name, own in self.settings.queues.items() if own)]

    def _error_on(self, queue: str, task: Any, of_retry: Any) -> SettingsError | None:
        if task.tiers is not None and self.has_native_retry(queue):
            return SettingsError(
                f"tiers of task {task.name}",
                task.tiers,
                f'Queue {queue!r} has "retry": "native", which is the same for all its tasks: leave tiers out, or '
                "route the task to another queue.",
            )
        try:
            check_max_retries(task.max_retries_set, self.ladder(queue, task), task.name)
            check_max_retries(of_retry, self.ladder(queue, task), f"{task.name}, in retry_kwargs")
        except SettingsError as error:
            return error
        return None

    def _check_classes(self, task: Any) -> None:
        if task.Strategy != STRATEGY:
            raise SettingsError(f"Strategy of task {task.name}", task.Strategy, f"{_BOTH}: leave Strategy out.")
        if task.Request != REQUEST:
            found = symbol_by_name(task.Request)
            if not (isinstance(found, type) and issubclass(found, symbol_by_name(REQUEST))):
                advice = f"let it subclass {REQUEST.replace(':', '.')}, or leave Request out."
                raise SettingsError(f"Request of task {task.name}", task.Request, f"{_BOTH}: {advice}")


def find_state(app: Celery) -> AppState | None:
    """Return the state that `install` attached to the app; None where it was not called."""
    return getattr(app, ATTRIBUTE, None)


def state_of(app: Celery) -> AppState:
    """Return the state that `install` attached to the app, or raise `RmqDelayError`."""
    delay = find_state(app)
    if delay is None:
        raise RmqDelayError(f"{app!r} has no delay queues: call celery_rmq_delay.install(app) after its configuration.")
    return delay


def is_retryable(task: Any) -> bool:
    """Return whether a task has a ladder: a `RetryableTask` that is not built into Celery."""
    return getattr(task.__class__, "_rmq_delay_ladder", False) is True and not is_celerys(task.name)


def is_celerys(name: str | None) -> bool:
    """Return whether a task of this name is built into Celery, such as ``celery.chord_unlock``."""
    return (name or "").startswith("celery.")
