"""The base class of tasks whose retries wait in RabbitMQ's delay queues."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task
from celery.exceptions import Reject, Retry
from kombu.exceptions import OperationalError

from .app.state import REQUEST, STRATEGY, AppState, find_state, is_celerys
from .durations import DelayLike, aware_eta, until_ms, whole_ms
from .exceptions import PublishError, RmqDelayError, TopologyError
from .publish.forward import publish_retry
from .retry.decision import next_delay
from .retry.delivery import Delivery, Parked, Retrying, RetryPath, delivery_of
from .settings.values import NOT_SET, check_max_retries
from .worker.trace import LeanTrace

if TYPE_CHECKING:
    from celery import Celery

    _Task = Task[Any, Any]
else:
    _Task = Task

logger = logging.getLogger(__name__)


class LadderBudget:
    """``max_retries`` of a task that sets none: the length of its ladder, or None where the last tier repeats."""

    def __get__(self, task: RetryableTask | None, _owner: type) -> int | None:
        if task is None:
            return None
        delay = find_state(task.app)
        delivery = delivery_of(task.request)
        if delay is None:
            return Task.max_retries
        if delivery is None:  # eager: a retry is a call, and has to end
            return len(delay.ladder(task.app.conf.task_default_queue, task))
        return delay.ladder(delivery.queue, task).retries


class _LimitOfOneRequest:
    """``override_max_retries`` of one request; Celery keeps it on the task, for the next failure of any message."""

    def __get__(self, task: RetryableTask | None, _owner: type) -> Any:
        found = None if task is None else Retrying.of(task.request).limit
        if found is None:
            raise AttributeError("override_max_retries")
        return found

    def __set__(self, task: RetryableTask, value: int | None) -> None:
        Retrying.of(task.request).limit = value

    def __delete__(self, task: RetryableTask) -> None:
        self.__set__(task, None)


class RetryableTask(_Task):
    """A task whose retries wait in the ladder of their queue.

    ``autoretry_for`` defaults to every `Exception`; an exception in ``give_up_on`` sends the task straight to the
    exhausted queue. ``tiers`` (delays as in the settings) sets a ladder for this task only. ``max_retries`` defaults to
    the number of tiers. `retry` works as in Celery; only the message waits in RabbitMQ.
    """

    abstract = True
    acks_late = True
    acks_on_failure_or_timeout = acks_on_failure = acks_on_timeout = True
    reject_on_worker_lost = False
    retry_on_worker_lost = False
    Request = REQUEST
    Strategy = STRATEGY
    #: Marks tasks that have a ladder, for modules that do not import this one.
    _rmq_delay_ladder: ClassVar[bool] = True
    autoretry_for: ClassVar[tuple[type[BaseException], ...]] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    tiers: list[DelayLike] | tuple[DelayLike, ...] | None = None
    max_retries: Any = LadderBudget()
    override_max_retries = _LimitOfOneRequest()
    __trace__ = LeanTrace()

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep Celery's defaults for its built-in tasks, which get this class by ``Celery(task_cls=RetryableTask)``."""
        super().__init_subclass__(**options)
        if is_celerys(cls.name):
            for name, value in _AS_IN_CELERY.items():
                if name not in vars(cls):
                    setattr(cls, name, value)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Retry the task like `celery.Task.retry`, after a wait in the delay queue of the next tier.

        An explicit ``countdown`` (seconds) or ``eta`` is exact: it waits in the queues for exact delays. Changed
        arguments or options are published as a new message, which is confirmed before the old one is acked. Raises
        `DelayError` for an invalid delay, and `SettingsError` for an invalid ``max_retries``.
        """
        if isinstance(exc, Reject):
            raise exc  # Celery's autoretry_for lets only Ignore and Retry pass
        request: Any = self.request
        given: Any = exc  # the stubs allow only an Exception
        delivery = delivery_of(request)
        delay = find_state(self.app)
        cause = exc if exc is not None else sys.exc_info()[1]
        if cause is not None and isinstance(cause, self.give_up_on):
            raise cause
        if delivery is None or delay is None or request.called_directly or request.is_eager:
            return super().retry(args, kwargs, given, throw, eta, countdown, max_retries, **options)
        if options.get("exchange") or options.get("routing_key"):
            raise RmqDelayError(
                f"retry of {self.name}: found an exchange or a routing_key, but it needs a queue. Pass queue= instead."
            )
        ladder = delay.ladder(delivery.queue, self)
        if max_retries is not None:
            check_max_retries(max_retries, ladder, f"{self.name}, passed to retry()")
        most = self.max_retries if max_retries is None else max_retries
        retrying = Retrying.of(request)
        retrying.is_used_up = most is not None and request.retries >= most
        queue = options.get("queue")
        queue = getattr(queue, "name", queue) or delivery.queue
        changed = bool(options) or _differs(args, request.args) or _differs(kwargs, request.kwargs)
        wanted = self._exact_ms(delay, countdown, eta)
        if wanted is None and not delay.has_ladder(queue):  # it has no delay queues
            tier_index = ladder.tier_after(request.retries)
            wanted = ladder.ttl(tier_index, delivery.lane)
            if not retrying.is_used_up:
                what = f"tier {tier_index} of {self.name} on queue {queue!r}, whose tiers are exact delays"
                delay.exact.check(wanted, what, wanted / 1000)
        path, tier_index = next_delay(
            delivery, ladder, request.retries, is_exact=wanted is not None, is_changed=changed or not throw
        )
        retrying.path = path
        try:
            retry: Any = super().retry(
                args,
                kwargs,
                given,
                throw=False,
                countdown=(ladder.ttl(tier_index, delivery.lane) if wanted is None else wanted) / 1000,
                max_retries=max_retries,
                **options,
            )
        finally:
            retrying.path = None
        if path is RetryPath.PUBLISH and not self._publish(
            delay, delivery, retry.sig, tier_index=tier_index, queue=queue, delay_ms=wanted
        ):
            path, throw, queue = RetryPath.COPY, True, delivery.queue
        parked = Parked.of(retry, path, tier_index, wanted, None if queue == delivery.queue else queue)
        if throw:
            raise parked
        return parked

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call `delay` when Django's transaction has committed, as tasks of Celery do in a Django project."""
        _djangos_task().delay_on_commit(self, *args, **kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Call `apply_async` when Django's transaction has committed, as tasks of Celery do in a Django project."""
        _djangos_task().apply_async_on_commit(self, *args, **kwargs)

    @property
    def max_retries_set(self) -> Any:
        """``max_retries`` as set on the task; `NOT_SET` where the ladder decides."""
        # The result of `inspect.getattr_static`, in a tenth of the time: the worker reads it for each attempt.
        written = next(vars(each)["max_retries"] for each in (self, *type(self).__mro__) if "max_retries" in vars(each))
        if isinstance(written, LadderBudget):
            return NOT_SET
        return self.max_retries if hasattr(written, "__get__") else written

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Raise `SettingsError` for invalid settings of the task as soon as it is bound to an app."""
        delay = find_state(app)
        if delay is not None and delay.checks_bound and cls.name is not None:
            delay.check_task(cls())

    def signature_from_request(self, request: Any = None, *args: Any, **options: Any) -> Any:
        """Return the signature of a retry; one that publishes nothing while `retry` decides how to publish it."""
        current = self.request if request is None else request
        path = Retrying.of(current).path
        if path is None:
            return super().signature_from_request(request, *args, **options)
        if path is not RetryPath.PUBLISH:
            return _Unsent()
        return _Unsent(super().signature_from_request(request, *args, **options))

    def _exact_ms(self, delay: AppState, countdown: Any, eta: Any) -> int | None:
        if eta is not None:
            wanted, what, found = until_ms(aware_eta(self.app, eta)), "eta", eta
        elif countdown is not None:
            wanted, what, found = whole_ms(countdown, "countdown"), "countdown", countdown
        else:
            return None
        delay.exact.check(wanted, f"{what} of a retry of {self.name}", found)
        return wanted

    def _publish(
        self, delay: AppState, delivery: Delivery, unsent: _Unsent, *, tier_index: int, queue: str, delay_ms: int | None
    ) -> bool:
        """Publish the retry to its delay queue; return False where the old message has to be parked instead."""
        try:
            publish_retry(
                delay, self, delivery, unsent.signature, tier_index=tier_index, queue=queue, delay_ms=delay_ms
            )
        except _publish_errors(self.app):
            logger.exception("No confirm for the retry of %s: its old message is parked instead", self.request.id)
            return False
        return True


_OF_EACH_CLASS = {"__module__", "__doc__", "abstract"}
#: Celery's values of the attributes that `RetryableTask` changes.
_AS_IN_CELERY = {
    "autoretry_for": (),
    **{name: vars(Task)[name] for name in (vars(RetryableTask).keys() & vars(Task).keys()) - _OF_EACH_CLASS},
}


def _publish_errors(app: Celery) -> tuple[type[BaseException], ...]:
    return (PublishError, TopologyError, OperationalError, *app.connection_for_write().recoverable_connection_errors)


class _Unsent:
    """A retry's signature that `retry` publishes, if there is one, with confirm after Celery's checks."""

    def __init__(self, signature: Any = None) -> None:
        self.signature = signature
        self.args, self.kwargs = getattr(signature, "args", None), getattr(signature, "kwargs", None)

    def apply_async(self) -> None:
        """Publish nothing yet."""


def _djangos_task() -> Any:
    from celery.contrib.django.task import DjangoTask

    return DjangoTask


def _differs(given: Any, present: Any) -> bool:
    return given is not None and given is not present and given != present
