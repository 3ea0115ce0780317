"""What a test leaves to the garbage collector: its warning ends whatever test is running then."""

from __future__ import annotations

import gc
import io
import socket


class Leaks:
    """Looks after each test for open sockets and files that nothing refers to any more."""

    def __init__(self) -> None:
        self.are_sought = False

    def seek(self) -> None:
        """Look for them from now on; garbage is collected when a test has ended, and at no other time."""
        self.are_sought = True
        gc.disable()

    def check(self) -> None:
        """Fail if the garbage has open sockets or files."""
        if not self.are_sought:
            return
        before = _open()
        gc.collect()
        found = sorted(before[each] for each in before.keys() - _open().keys())
        assert not found, f"left to the garbage collector: {', '.join(found)}"


#: Those of this process: ``pytest --leaks`` looks for them.
LEAKS = Leaks()


def _open() -> dict[int, str]:
    return {id(each): repr(each) for each in gc.get_objects() if _is_open(each)}


def _is_open(each: object) -> bool:
    if isinstance(each, socket.socket):
        return each.fileno() >= 0
    return isinstance(each, io.FileIO) and not each.closed
