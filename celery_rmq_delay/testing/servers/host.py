"""The host of a private server: this machine's loopback, unless a test has a separate network."""

from __future__ import annotations


class Host:
    """This machine's loopback, shared by all servers."""

    address = "127.0.0.1"
    """The address servers listen on."""
    name = "localhost"
    """The name of the host for other servers."""
    is_apart = False
    """Whether it has its own loopback, so that ports of other hosts are free here."""

    def publish(self, port: int) -> None:
        """Forward a port of 127.0.0.1 to the host, for clients on this machine."""

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` on the host by ``exec``."""
        return list(argv)


LOOPBACK = Host()
