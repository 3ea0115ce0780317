"""The base class of commands that run for minutes, or until they are stopped, and values of options."""

from __future__ import annotations

import logging
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ....exceptions import RmqDelayError

#: The parent of this package's loggers.
LOGGER = "celery_rmq_delay"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class LongRunningCommand(BaseCommand):
    """A command whose lines of output are flushed one by one, with a log on standard error.

    Python buffers standard output that is not a terminal: with systemd, Docker and Kubernetes, lines would appear after
    some kilobytes only, and get lost when the process is killed.
    """

    def execute(self, *arguments: Any, **options: Any) -> str | None:
        """Run with the log on standard error; errors of this package are those of the command."""
        with logged():
            try:
                return super().execute(*arguments, **options)
            except RmqDelayError as error:
                raise CommandError(str(error)) from error

    def write_line(self, line: str) -> None:
        """Write a line to standard output at once."""
        self.stdout.write(line)
        self.stdout.flush()


@contextmanager
def logged() -> Iterator[None]:
    """Write this package's log to standard error, from INFO on, where the project has no handler for it."""
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


def day(text: str) -> date:
    """Return a date, for ``type`` of an option."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise _refused(text, "a date, such as 2026-01-31") from error


def seconds(text: str) -> float:
    """Return a number of seconds that is neither negative nor infinite, for ``type`` of an option."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise _refused(text, "a number of seconds, 0 or more")
    return number


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a function for ``type`` of an option: it returns a whole number between these."""

    def found(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise _refused(text, f"a whole number from {least} to {most}")
        return number

    return found


def _refused(text: str, wanted: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"found {text!r}; write {wanted}")
