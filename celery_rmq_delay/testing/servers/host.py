"""Where a private server runs: on this machine's loopback, unless a test has a network of its own."""

from __future__ import annotations


class Host:
    """This machine's loopback, shared with all who use it."""

    address = "127.0.0.1"
    """The address servers listen on."""
    name = "localhost"
    """What other servers call the host."""
    is_apart = False
    """Whether it has its own loopback, so that ports of other hosts are free here."""

    def publish(self, port: int) -> None:
        """Let clients on this machine reach a port of the host as a port of 127.0.0.1."""

    def command(self, *argv: str) -> list[str]:
        """Return the command line that becomes ``argv`` on the host, by ``exec``."""
        return list(argv)


LOOPBACK = Host()
