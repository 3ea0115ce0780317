"""The base class of commands that run for minutes, or until they are stopped."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class LongRunningCommand(BaseCommand):
    """A command whose lines of output are flushed one by one.

    Python buffers standard output that is not a terminal: with systemd, Docker and Kubernetes, lines would appear after
    some kilobytes only, and get lost when the process is killed.
    """

    def write_line(self, line: str) -> None:
        """Write a line to standard output at once."""
        self.stdout.write(line)
        self.stdout.flush()
