"""The base of the commands that run for minutes, or until they are stopped."""

from __future__ import annotations

from django.core.management.base import BaseCommand


class LongRunningCommand(BaseCommand):
    """A command whose lines appear when they are written.

    Python buffers standard output that is not a terminal: behind the pipes of systemd, Docker and Kubernetes nothing
    would appear until some kilobytes are full, and a killed process would take them with it.
    """

    def write_line(self, line: str) -> None:
        """Write a line to standard output at once."""
        self.stdout.write(line)
        self.stdout.flush()
