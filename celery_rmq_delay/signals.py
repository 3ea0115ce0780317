"""Signals of parked, recovered and exhausted tasks, and of requeues.

The first three are sent in the worker's main process after the message was settled. ``sender`` is the task. They have
the arguments ``request`` (`celery.worker.request.Request`), ``queue`` (the origin queue) and ``attempt`` (0 is the
first):

* ``task_parked``: also ``exception``, ``delay_ms``, the planned wait (None after a ``Retry`` without a number), and
  ``tier``, the 1-based position of its tier (None where it waits for an exact delay);
* ``task_recovered``: a task that had failed before has succeeded;
* ``task_exhausted``: also ``exception`` and ``reason`` (``retries_used``, ``gave_up``, ``crashed``).

Those of requeues are sent in the process that requeues exhausted tasks. ``sender`` is the name of the task. They have
the arguments ``task_id``, ``queue``, and ``arguments``: called, it returns ``args`` and ``kwargs``, or raises
`ValueError` where they are not plain JSON:

* ``before_requeue``: a receiver that returns a text keeps the task exhausted, for this reason; so does an exception;
* ``requeue_failed``: the broker has not taken the message, so the task stays exhausted.
"""

from celery.utils.dispatch import Signal

__all__ = [
    "before_requeue",
    "requeue_failed",
    "task_exhausted",
    "task_parked",
    "task_recovered",
]

task_parked = Signal(
    name="task_parked", providing_args=["request", "queue", "attempt", "exception", "delay_ms", "tier"]
)
task_recovered = Signal(name="task_recovered", providing_args=["request", "queue", "attempt"])
task_exhausted = Signal(name="task_exhausted", providing_args=["request", "queue", "attempt", "exception", "reason"])
before_requeue = Signal(name="before_requeue", providing_args=["task_id", "queue", "arguments"])
requeue_failed = Signal(name="requeue_failed", providing_args=["task_id", "queue", "arguments"])
