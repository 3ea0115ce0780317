"""How an attempt is traced: a tracer that never raises, and a lean record of a failed attempt.

Celery's record (`billiard.einfo.ExceptionInfo`) copies the code positions of every frame: 42 KB pickled, 1.3 ms to
create, and child processes that grow with each failure. The lean record has the parts that the parent process, the
result backend, hooks, signals and Flower read: the exception and the text of its traceback. Hooks in the child still
find the traceback object in ``tb``.
"""

from __future__ import annotations

import inspect
import logging
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from types import TracebackType
from typing import Any

from billiard import current_process
from billiard.einfo import ExceptionInfo, Traceback
from billiard.exceptions import WorkerLostError
from celery import Task, signals, states
from celery.app import trace
from celery.exceptions import Reject, Retry, WorkerShutdown, WorkerTerminate
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception
from celery.worker import state
from kombu.utils.encoding import safe_repr

from ..retry.delivery import Retrying
from .hooks import missing

logger = logging.getLogger(__name__)

Tracer = Callable[..., Any]


class LeanExceptionInfo(ExceptionInfo):
    """An `ExceptionInfo` that is pickled as exception and text.

    ``is_last``: `Task.retry` has refused another retry. ``is_reported``: the failure is stored, and its hooks were
    called.
    """

    def __init__(
        self,
        exception: BaseException,
        tb: TracebackType | None,
        text: str,
        is_last: bool = False,
        is_reported: bool = True,
    ) -> None:
        kind: Any = type(exception)  # for mypy no exception class is hashable
        self.type, self.exception, self.traceback, self.internal = _pickleable_type(kind), exception, text, False
        self.is_last, self.is_reported, self._tb = is_last, is_reported, tb

    @property
    def tb(self) -> Traceback | None:
        """The traceback in billiard's form while the attempt's hooks run; None afterwards."""
        return Traceback(self._tb) if self._tb is not None else None

    @property
    def exc_info(self) -> tuple[type[BaseException], BaseException, TracebackType | None]:
        """The values of ``sys.exc_info()``; without the traceback once the attempt is over."""
        return self.type, self.exception, self._tb

    def let_go(self) -> None:
        """Release the frames and all objects in their locals."""
        self._tb = None

    def __reduce__(self) -> Any:
        return LeanExceptionInfo, (self.exception, None, self.traceback, self.is_last, self.is_reported)


def lost(exc: BaseException) -> LeanExceptionInfo:
    """Return the record of an attempt that was left by an exception which is no `Exception`: a lost worker."""
    error = WorkerLostError(f"Worker exited prematurely: {safe_repr(exc)}.")
    text = format_exception(exc, exc.__traceback__) if exc.__traceback__ is not None else ""
    return LeanExceptionInfo(error, None, f"{text}WorkerLostError: {error}")


def unreported(exc: Exception) -> LeanExceptionInfo:
    """Return the record of an attempt that was left by an exception which Celery has not reported."""
    return LeanExceptionInfo(
        get_pickleable_exception(exc), None, format_exception(exc, exc.__traceback__), is_reported=False
    )


_pickleable_type: Any = lru_cache(maxsize=256)(get_pickleable_etype)


class LeanInfo(trace.TraceInfo):
    """Celery's handling of failed attempts, with the lean record."""

    __slots__ = ()

    def handle_retry(self, task: Task[Any, Any], req: Any, store_errors: bool = True, **_: Any) -> LeanExceptionInfo:
        """Store RETRY, call ``on_retry``, send ``task_retry``, log: as Celery does."""
        reason: Retry = self.retval
        cause: Any = reason.exc  # the hooks take an Exception; in Celery it may be None
        tb = sys.exc_info()[2]
        einfo = LeanExceptionInfo(reason, tb, format_exception(reason, tb))
        try:
            if store_errors:
                store_retry(task, req, cause, einfo.traceback)
            announce_retry(task, cause, req, reason, einfo)
            if trace.logger.isEnabledFor(logging.INFO):
                name = trace.get_task_name(req, task.name)
                trace.info(trace.LOG_RETRY, {"id": req.id, "name": name, "exc": str(reason)})
            trace.traceback_clear(reason)
        finally:
            del tb
            einfo.let_go()
        return einfo

    def handle_failure(
        self, task: Task[Any, Any], req: Any, store_errors: bool = True, call_errbacks: bool = True
    ) -> LeanExceptionInfo:
        """Store FAILURE, call errbacks and ``on_failure``, send ``task_failure``, log: as Celery does."""
        exc = get_pickleable_exception(self.retval)
        if exc.__traceback__ is None:
            exc.__traceback__ = sys.exc_info()[2]
        text = format_exception(exc, exc.__traceback__)
        einfo = LeanExceptionInfo(exc, exc.__traceback__, text, is_last=Retrying.of(req).is_used_up)
        try:
            with _only_logged("Storing FAILURE, or calling the errbacks,", task, req):
                task.backend.mark_as_failure(
                    req.id, exc, einfo.traceback, request=req, store_result=store_errors, call_errbacks=call_errbacks
                )
            with _only_logged("on_failure", task, req):
                task.on_failure(exc, req.id, req.args, req.kwargs, einfo)
            with _only_logged("A receiver of task_failure", task, req):
                signals.task_failure.send(
                    sender=task,
                    task_id=req.id,
                    exception=exc,
                    args=req.args,
                    kwargs=req.kwargs,
                    traceback=exc.__traceback__,
                    einfo=einfo,
                )
            self._log_error(task, req, einfo)
            trace.traceback_clear(exc)
        finally:
            einfo.let_go()
        return einfo


@contextmanager
def _only_logged(what: str, task: Task[Any, Any], request: Any) -> Iterator[None]:
    """Log an exception of a hook, receiver, errback or backend, which Celery would treat as the attempt's outcome."""
    try:
        yield
    except BaseException as raised:
        if isinstance(raised, MemoryError) or _is_of_the_pool(raised, request.id):
            raise
        text, extra = "%s of %s[%s] raised; the message is settled anyway", {"task_id": request.id}
        logger.exception(text, what, task.name, request.id, extra=extra)


def announce_retry(task: Task[Any, Any], exc: Any, request: Any, reason: Retry, einfo: ExceptionInfo) -> None:
    """Call the task's hook ``on_retry``, and send ``task_retry``."""
    with _only_logged("on_retry", task, request):
        task.on_retry(exc, request.id, request.args, request.kwargs, einfo)
    with _only_logged("A receiver of task_retry", task, request):
        signals.task_retry.send(sender=task, request=request, reason=reason, einfo=einfo)


def store_retry(task: Task[Any, Any], request: Any, exc: Any, traceback: str | None) -> None:
    """Store the state RETRY, if the result backend is available."""
    with _only_logged("Storing RETRY", task, request):
        task.backend.mark_as_retry(request.id, exc, traceback, request=request)


def _forget_frames(*exceptions: BaseException | None) -> None:
    """Remove the tracebacks of exceptions and their causes: each is in a cycle with the frame that handles it."""
    for exception in exceptions:
        current = exception
        while current is not None and current.__traceback__ is not None:
            current.__traceback__ = None
            current = current.__cause__ or current.__context__


def _settled(tracer: Tracer, task: Task[Any, Any]) -> Tracer:
    """Return a tracer that never raises, so that each attempt is settled on each pool; and that releases frames.

    A pool without processes does not settle what a tracer raises (celery.concurrency.base.apply_target). An exception
    that is no `Exception`, such as `SystemExit` or a leaked ``gevent.Timeout``, counts as a lost worker. Those by which
    Celery or the pool ends the task are raised: see `_is_of_the_pool`.
    """

    @wraps(tracer)
    def trace_task(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        is_eager = (request or {}).get("is_eager")
        if task.track_started:
            _start_without_backend(task)
        try:
            traced = tracer(uuid, args, kwargs, request)
        except BaseException as left:
            einfo = None if is_eager else _of_tracer(left, task, uuid)
            if einfo is None:
                raise
            traced = trace.trace_ok_t(einfo, LeanInfo(states.FAILURE, einfo.exception), 0.0, None)
        info = traced[1]
        if info is not None and not is_eager:  # a direct caller needs the traceback
            with suppress(BaseException):  # an attribute of the exception may raise anything
                _forget_frames(info.retval, getattr(info.retval, "exc", None), traced[0].exception)
        return traced

    return trace_task


def _start_without_backend(task: Task[Any, Any]) -> None:
    """Run a task although the backend of this thread cannot store STARTED; Celery would report the task as failed."""
    backend: Any = task.backend  # the stubs allow no other method
    if "store_result" in vars(backend):
        return
    store = backend.store_result

    @wraps(store)
    def store_result(task_id: str, result: Any, state: str, *args: Any, **options: Any) -> Any:
        try:
            return store(task_id, result, state, *args, **options)
        except Exception:
            if state != states.STARTED:
                raise
            logger.exception("STARTED of %s was not stored; the task runs anyway", task_id, extra={"task_id": task_id})

    backend.store_result = store_result


def _of_tracer(left: BaseException, task: Task[Any, Any], task_id: str) -> LeanExceptionInfo | None:
    """Log an exception that a tracer has raised, and return its record, not reported yet; None to raise it."""
    try:
        if _is_of_the_pool(left, task_id):
            return None
        if not isinstance(left, (Reject, MemoryError)):
            text = "Task %s[%s] was left by %s"
            logger.exception(text, task.name, task_id, safe_repr(left), extra={"task_id": task_id})
        if not isinstance(left, Exception):
            return lost(left)
        return unreported(left)
    except BaseException:  # noqa: BLE001 - whatever it raises where it is inspected
        error = WorkerLostError(f"Worker exited prematurely: {type(left).__name__}, which cannot be inspected.")
        return LeanExceptionInfo(error, None, f"WorkerLostError: {error}")


def _is_of_the_pool(left: BaseException, task_id: str) -> bool:
    """Return whether an exception ends a worker, or is how its pool ends a task."""
    if isinstance(left, Exception):
        return False
    if isinstance(left, (WorkerShutdown, WorkerTerminate)):
        return True
    if current_process().daemon:  # prefork's process exits
        return isinstance(left, SystemExit)
    request = state.requests.get(task_id)
    pool = getattr(request, "pool", None)
    if isinstance(left, getattr(pool, "raises", ())):
        return True
    if isinstance(left, imported("greenlet", "GreenletExit")):
        return request is None  # Celery has removed a request that it terminates
    # Celery's has the limit of the task; one of the task itself with the same limit would begin later.
    limit = getattr(request, "hard_time_limit", None)
    return isinstance(left, imported("gevent", "Timeout")) and limit is not None and left.seconds == limit


def imported(module: str, name: str) -> Any:
    """Return a class for ``isinstance``; where its module is not imported, an empty tuple."""
    return getattr(sys.modules.get(module), name, ())


class LeanTrace:
    """Descriptor for ``Task.__trace__``, which Celery sets: replaces a tracer by one with the lean record."""

    _KEY = "_rmq_delay_trace"

    def __get__(self, task: Task[Any, Any] | None, _owner: type) -> Tracer | None:
        return None if task is None else vars(task).get(self._KEY)

    def __set__(self, task: Task[Any, Any], tracer: Tracer | None) -> None:
        if tracer is not None and not missing():
            known = _closure(tracer)
            built = trace.build_tracer(
                task.name,
                task,
                loader=task.app.loader,
                hostname=known.get("hostname") or socket.gethostname(),
                app=task.app,
                Info=LeanInfo,
            )
            tracer = _settled(built, task)
        vars(task)[self._KEY] = tracer


def _closure(function: Tracer) -> dict[str, Any]:
    """Return the closure of a tracer, which is the only place that has the worker's host name."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)} if code else {}


_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_TITLE = "Traceback (most recent call last):\n"
_CACHED_STACKS = 1024
#: Python searches the frames for names similar to the missing one ("Did you mean ...?").
_SUGGESTING = (NameError, AttributeError, ImportError)

_Frames = tuple[tuple[str, str, int, int], ...]
_stacks: dict[_Frames, str] = {}


def format_exception(exception: BaseException, tb: TracebackType | None) -> str:
    """Return what ``"".join(traceback.format_exception(type(exception), exception, tb))`` returns.

    Failures repeat: the part of the text that depends on code only is cached by the (file, function, line, instruction)
    of its frames; type and message of the exception are formatted each time.
    """
    parts: list[str] = []
    seen: set[int] = set()
    link, stack = "", tb
    current: BaseException | None = exception
    while current is not None and id(current) not in seen:
        kind: Any = type(current)  # for mypy no exception class is hashable
        if _is_group_type(kind):
            return "".join(traceback.format_exception(type(exception), exception, tb))
        seen.add(id(current))
        parts.append(_one(current, stack) + link)
        if current.__cause__ is not None:
            current, link = current.__cause__, _CAUSE
        elif current.__context__ is not None and not current.__suppress_context__:
            current, link = current.__context__, _CONTEXT
        else:
            break
        stack = current.__traceback__
    return "".join(reversed(parts))


def _one(exception: BaseException, tb: TracebackType | None) -> str:
    if isinstance(exception, _SUGGESTING):
        return "".join(traceback.format_exception(type(exception), exception, tb, chain=False))
    only = _only(exception)
    return _TITLE + _stack(tb) + only if tb is not None else only


def _only(exception: BaseException) -> str:
    """Return type and message; the standard library extracts the stacks of all causes to do so."""
    kind: Any = type(exception)
    name = _plain_name(kind)
    if name is not None and getattr(exception, "__notes__", None) is None:
        try:
            text = str(exception)
        except Exception:  # noqa: BLE001 - the standard library has a text for it
            return "".join(traceback.format_exception_only(kind, exception))
        return f"{name}: {text}\n" if text else f"{name}\n"
    return "".join(traceback.format_exception_only(kind, exception))


@lru_cache(maxsize=256)
def _plain_name(kind: Any) -> str | None:
    """Return the standard library's name of an exception; None if it formats more than name and message."""
    if issubclass(kind, (SyntaxError, *_SUGGESTING)) or _is_group_type(kind):
        return None
    module = kind.__module__
    return kind.__qualname__ if module in ("__main__", "builtins") else f"{module}.{kind.__qualname__}"


def _stack(tb: TracebackType) -> str:
    found = []
    current: TracebackType | None = tb
    while current is not None:
        code = current.tb_frame.f_code
        found.append((code.co_filename, code.co_name, current.tb_lineno, current.tb_lasti))
        current = current.tb_next
    frames = tuple(found)
    text = _stacks.get(frames)  # another thread may clear them
    if text is None:
        if len(_stacks) >= _CACHED_STACKS:
            _stacks.clear()
        text = _stacks[frames] = "".join(traceback.format_tb(tb))
    return text


@lru_cache(maxsize=256)
def _is_group_type(kind: type[BaseException]) -> bool:
    return any(base.__name__ == "BaseExceptionGroup" for base in kind.__mro__)
