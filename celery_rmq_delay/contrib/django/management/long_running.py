"""The base class of commands that run for minutes, or until they are stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand

#: The parent of this package's loggers.
LOGGER = "celery_rmq_delay"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class LongRunningCommand(BaseCommand):
    """A command whose lines of output are flushed one by one, with a log on standard error.

    Python buffers standard output that is not a terminal: with systemd, Docker and Kubernetes, lines would appear after
    some kilobytes only, and get lost when the process is killed.
    """

    def execute(self, *arguments: Any, **options: Any) -> str | None:
        """Run; the log is written to standard error where the project has configured no handler for it."""
        with logged():
            return super().execute(*arguments, **options)

    def write_line(self, line: str) -> None:
        """Write a line to standard output at once."""
        self.stdout.write(line)
        self.stdout.flush()


@contextmanager
def logged() -> Iterator[None]:
    """Write this package's log to standard error in the block, with times and from INFO on.

    Where the project has a handler for it, or for all loggers, nothing is changed.
    """
    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), logger.level
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
