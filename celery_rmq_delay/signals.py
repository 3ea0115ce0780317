"""Signals of parked, recovered and exhausted tasks.

They are sent in the worker's main process after the message was settled. ``sender`` is the task. All have the arguments
``request`` (`celery.worker.request.Request`), ``queue`` (the origin queue) and ``attempt`` (0 is the first):

* ``task_parked``: also ``exception``, ``delay_ms``, the planned wait (None after a ``Retry`` without a number), and
  ``tier``, the 1-based position of its tier (None where it waits for an exact delay);
* ``task_recovered``: a task that had failed before has succeeded;
* ``task_exhausted``: also ``exception`` and ``reason`` (``retries_used``, ``gave_up``, ``crashed``).
"""

from celery.utils.dispatch import Signal

__all__ = [
    "task_exhausted",
    "task_parked",
    "task_recovered",
]

task_parked = Signal(
    name="task_parked", providing_args=["request", "queue", "attempt", "exception", "delay_ms", "tier"]
)
task_recovered = Signal(name="task_recovered", providing_args=["request", "queue", "attempt"])
task_exhausted = Signal(name="task_exhausted", providing_args=["request", "queue", "attempt", "exception", "reason"])
