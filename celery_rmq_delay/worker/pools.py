"""Handling of tasks that were written to prefork's processes, when the pool closes or the connection is lost."""

from __future__ import annotations

from functools import partial
from typing import Any


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
