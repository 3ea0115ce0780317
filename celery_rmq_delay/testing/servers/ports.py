"""Free loopback ports for private servers."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket

from ...exceptions import PrivateServerError

# Below the range of local ports of outgoing connections (Linux: from 32768), so that no client can use a port before
# the server listens on it.
_RANGE = (15_000, 32_000)
_random = random.SystemRandom()
_handed_out: set[int] = set()


def free_port() -> int:
    """Return an unused loopback TCP port, never the same one twice in a process.

    A port of another process of the same user stays reserved until that process ends, as servers listen only seconds
    after they have got one.
    """
    for _ in range(500):
        port = _random.randint(*_RANGE)
        if port not in _handed_out and _reserve(port):
            _handed_out.add(port)
            if is_free(port):
                return port
    raise PrivateServerError(f"500 random ports between {_RANGE[0]} and {_RANGE[1]} on 127.0.0.1 were all in use.")


def _reserve(port: int) -> bool:
    """Lock a port's byte in a file that all processes share; the kernel releases it when this process ends."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@functools.cache
def _reservations() -> int:
    path = f"/tmp/rmq-delay-ports-{os.getuid()}"  # noqa: S108 - not in TMPDIR: the ports are the machine's
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, to ignore past connections
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
