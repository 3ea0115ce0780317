"""The host of a private server, free ports on it, and the files and the environment of a RabbitMQ node there."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from ...exceptions import PrivateServerError


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


# Two schedulers without busy waiting, to leave the cores to the tests.
_ERL_ARGS = "+S 2:2 +SDcpu 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"


@dataclass(frozen=True)
class NodeSettings:
    """The settings of a node: its name, its address, its ports and its configuration."""

    node: str
    address: str
    cookie: str
    port: int
    dist_port: int
    epmd_port: int
    management_port: int | None
    plugins: tuple[str, ...]
    config: str

    def write(self, home: Path) -> None:
        """Write the node's files into an empty directory."""
        for folder in ("log", "data", "conf.d"):
            (home / folder).mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)
        (home / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (home / "rabbitmq.conf").write_text(self.conf())
        (home / "rabbitmq-env.conf").touch()

    def conf(self) -> str:
        """Return the text of rabbitmq.conf."""
        lines = [
            f"listeners.tcp.1 = {self.address}:{self.port}",
            "loopback_users = none",  # guest also connects from the network switch of a private network
            "log.console = false",
            "log.file = rabbit.log",
            "disk_free_limit.absolute = 10MB",
        ]
        if self.management_port:
            lines += [f"management.tcp.ip = {self.address}", f"management.tcp.port = {self.management_port}"]
        return "\n".join([*lines, self.config, ""])

    def env(self, home: str, path: str) -> dict[str, str]:
        """Return the whole environment of the node and its tools; ``home`` is its directory as the node sees it."""
        distribution = f"-kernel inet_dist_use_interface {{{self.address.replace('.', ',')}}}"
        return {
            "HOME": home,
            "PATH": path,
            "LANG": "C.UTF-8",
            "ERL_CRASH_DUMP": f"{home}/log/erl_crash.dump",
            "ERL_EPMD_ADDRESS": self.address,
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the Erlang VM instead of waiting for it
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_CONFIG_FILES": f"{home}/conf.d",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/rabbitmq-env.conf",
            "RABBITMQ_CTL_DIST_PORT_MAX": "65535",
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self.dist_port + 1),
            "RABBITMQ_CTL_ERL_ARGS": distribution,
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_ERL_ARGS} {distribution}",
            # Erlang requires long names for hosts with a dot, and on short ones for those without, such as localhost.
            "RABBITMQ_USE_LONGNAME": str("." in self.node.partition("@")[2]).lower(),
        }
