"""Pools: tasks that were written to prefork's processes, and what tasks of other pools raise before they are traced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from .flight import InFlight
from .trace import unreported


def report_untraced(pool: Any) -> None:
    """Make a pool without processes report a task whose body is no call, as prefork does: its attempt has failed.

    Celery unpacks the body outside of the tracer (`celery.app.trace.trace_task_ret`). Such a pool reports nothing that
    is raised there, so that the message would not be settled.
    """
    if not (hasattr(getattr(pool, "_pool", None), "outbound_buffer") or isinstance(pool.on_apply, partial)):
        pool.on_apply = partial(_apply, pool.on_apply)


def _apply(on_apply: Callable[..., Any], target: Callable[..., Any], *given: Any, **options: Any) -> Any:
    flight = getattr(getattr(options.get("callback"), "__self__", None), "flight", None)
    if isinstance(flight, InFlight) and flight.is_managed:
        target = _reporting(target)
    return on_apply(target, *given, **options)


def _reporting(target: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(target)
    def apply(*args: Any, **options: Any) -> Any:
        try:
            return target(*args, **options)
        except Exception as error:  # noqa: BLE001 - reported as the end of the attempt
            return 1, unreported(error), 0.0

    return apply


def keep_written(pool: Any) -> None:
    """Make a pool settle each task that it has written to a process, even when it closes or the connection is lost.

    Celery's `AsynPool.flush` forgets those whose start was not reported yet, and before Celery 5.6 all others, too.
    They run nevertheless: the broker would deliver their messages again, their process would wait 30 s at its end for
    its results to be read, and before Celery 5.7 the pool would send it another task meanwhile, as if it were free.
    Other pools start tasks at once, and are not changed.
    """
    inner = getattr(pool, "_pool", None)
    if hasattr(inner, "outbound_buffer"):
        pool.flush = partial(_flush, inner)


def _flush(pool: Any) -> None:
    jobs = tuple(pool._cache.values())
    busy = {pid for job in jobs if job._accepted for pid in job.worker_pids()}
    for job in jobs:
        process = job._write_to
        if job._accepted or process is None or job in pool.outbound_buffer:
            continue
        writer = getattr(job, "_writer", bool)()  # a weak reference
        if writer in pool._active_writers:
            if process.pid in busy:  # with -O fast; it would read the rest only after its present task
                continue
            pool._flush_writer(process, writer)
        if process._is_alive():
            job._accepted = True
    running = {number: job for number, job in pool._cache.items() if job._accepted and not job.ready()}
    pool.flush()
    for number, job in running.items():
        if not job.ready() and job._write_to is not None and job._write_to._is_alive():
            pool._cache.setdefault(number, job)
            pool._busy_workers.add(job._write_to.inqW_fd)
