"""Quiet tests: while one of them runs, no other process of the same test run runs anything."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Turns:
    """Locks that the processes of a test run share; they are on files of the checkout, so that nothing is left behind.

    Who wants to be alone keeps the door shut while the others finish what they are at, so that it does get its turn.
    """

    def __init__(self) -> None:
        here = Path(__file__)
        self._door, self._room = (os.open(path, os.O_RDONLY) for path in (here, here.parent))
        self._alone = False

    def enter(self, *, alone: bool) -> None:
        """Wait for the others, if one of them or this one is to be alone."""
        if self._alone:
            return
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        self._alone = alone

    def leave(self, *, alone_again: bool) -> None:
        """Let the others go on, unless the next test of this process is to be alone, too."""
        if self._alone and alone_again:
            return
        fcntl.flock(self._room, fcntl.LOCK_UN)
        self._alone = False
