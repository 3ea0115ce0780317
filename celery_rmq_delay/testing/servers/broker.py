"""A private RabbitMQ node for tests, with its own ports, data and epmd, deleted afterwards."""

from __future__ import annotations

import http.client
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import amqp

from ...exceptions import PrivateServerError
from .host import LOOPBACK, Host, NodeSettings, free_port
from .installation import Installation
from .process import KeptProcess, PrivateServer, wait_until_ready

# Before RabbitMQ 4.3, deleting several quorum queues whose at-least-once dead-lettering is just being started, as it is
# after a restart, ends the supervisor of all such dead-lettering until the node is restarted: no queue dead-letters
# at least once, and declaring one fails with 541. So wait for leaders and for the dead-letter workers.
_SETTLED = (
    "[catch ra:members(amqqueue:get_pid(Q), 5000) "
    "|| Q <- rabbit_amqqueue:list(%s), amqqueue:get_type(Q) =:= rabbit_quorum_queue], "
    "[catch sys:get_state(W, 5000) || is_pid(whereis(rabbit_fifo_dlx_sup)), "
    "{_, W, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup), is_pid(W)]"
)
#: Seconds until a node accepts AMQP connections: one of a cluster may wait for others for minutes.
START_TIMEOUT = 300.0
#: Seconds of a command: in a cluster it may wait until RabbitMQ detects a lost node, a minute by default.
COMMAND_TIMEOUT = 180.0


class PrivateBroker(PrivateServer):
    """A RabbitMQ node on 127.0.0.1 that belongs to this process; a context manager.

    >>> with PrivateBroker() as broker:  # doctest: +SKIP
    ...     app = Celery(broker=broker.url)

    Every broker has its own ports, Erlang port mapper, cookie and temporary directory, so it does not
    affect another RabbitMQ on the machine. It ends with this process, also if that is killed.

    :param server: path of the ``rabbitmq-server`` to run; default: the one found on this machine.
    :param root: a chroot tree that holds the server; needs root.
    :param name: the node's name before ``@localhost``; default: a unique one.
    :param management: whether to serve the management API, see :attr:`management_url`.
    :param plugins: more plugins to enable.
    :param config: lines to add to rabbitmq.conf.
    :param cookie: the Erlang cookie; default: a random one. Nodes of a cluster share it.
    :param epmd_port: port of a running port mapper on a shared host; default: a new one.
    :param host: the host on which it runs.
    :raises ServerNotFoundError: when there is no such server.
    """

    def __init__(
        self, server: str | os.PathLike[str] | None = None, root: str | os.PathLike[str] | None = None,
        name: str | None = None, management: bool = False, plugins: Sequence[str] = (), config: str = "", *,
        cookie: str | None = None, epmd_port: int | None = None, host: Host = LOOPBACK,
    ) -> None:  # fmt: skip
        """Find the server; :meth:`start` or ``with`` starts it."""
        self.installation = Installation.find(server, root)
        self.settings = NodeSettings(
            node=f"{name or 'private' + secrets.token_hex(4)}@{host.name}",
            address=host.address,
            cookie=cookie or secrets.token_hex(16),
            port=free_port(),
            dist_port=free_port(),
            epmd_port=epmd_port or free_port(),
            management_port=free_port() if management else None,
            plugins=(*(["rabbitmq_management"] if management else []), *plugins),
            config=config,
        )
        self._host = host
        for published in filter(None, (self.settings.port, self.settings.management_port)):
            host.publish(published)
        self._own_epmd = epmd_port is None or host.is_apart
        self._dir: Path | None = None
        self._version: tuple[int, int, int] | None = None

    def __repr__(self) -> str:
        return f"<PrivateBroker {self.node} on port {self.port} from {self.installation.server}>"

    @property
    def node(self) -> str:
        """The Erlang node name, ``name@localhost``."""
        return self.settings.node

    @property
    def port(self) -> int:
        """The AMQP port on 127.0.0.1."""
        return self.settings.port

    @property
    def url(self) -> str:
        """The AMQP URL of the default vhost, as guest."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def management_url(self) -> str | None:
        """The base URL of the management API with credentials, without ``/api``; None without ``management=True``."""
        port = self.settings.management_port
        return f"http://guest:guest@127.0.0.1:{port}" if port else None

    @property
    def version(self) -> tuple[int, int, int]:
        """The server's version as sent to AMQP clients, for example ``(3, 10, 8)``."""
        if self._version is None:
            raise PrivateServerError(f"{self!r} has not been started yet: its version is unknown. Call start() first.")
        return self._version

    @property
    def log_path(self) -> Path:
        """The node's log file."""
        return self._home / "log" / "rabbit.log"

    def start(self) -> None:
        """Start the node, with the data it had if it was killed, and wait until it accepts connections.

        Does nothing when it runs. Raises `ServerStartError` with the tail of the node's log.
        """
        if self.pid is None:
            self.launch()
            self.await_ready()

    def launch(self) -> None:
        """Start the node's process and do not wait; it must not be running. Nodes of a cluster wait for each other."""
        if self._process is None:
            self._process = self._prepare()
        self._process.start()

    def await_ready(self) -> None:
        """Wait until a launched node accepts connections. Raises `ServerStartError` with the tail of its log."""
        logs = [self._home / "log" / "output.txt", self.log_path]
        wait_until_ready(self._is_ready, self._running(), what=repr(self), timeout=START_TIMEOUT, logs=logs)

    def stop(self) -> None:
        """End the node and all its helper processes and delete its data. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        if self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
        self._process = self._dir = None

    def restart(self, *, timeout: float = 60.0) -> None:
        """Shut the node down, or kill it after ``timeout`` seconds, and start it: same ports, durable data kept."""
        if not self._running().end("term", timeout=timeout):
            self.kill()
        self.start()

    def kill(self) -> None:
        """End the node with SIGKILL, as a crash would; :meth:`start` brings it back with its durable data."""
        if not self._running().end("kill", timeout=20):
            raise PrivateServerError(f"{self!r} (process {self.pid}) did not end 20 s after SIGKILL.")

    def rabbitmqctl(self, *args: str, timeout: float = COMMAND_TIMEOUT) -> str:
        """Run ``rabbitmqctl`` against the node (one to three seconds) and return what it printed.

        Raises `PrivateServerError` when it fails, with what it printed. ``timeout`` is in seconds.
        """
        return self._tool("rabbitmqctl", "-n", self.node, *args, timeout=timeout)

    def evaluate(self, erlang: str, *, timeout: float = COMMAND_TIMEOUT) -> str:
        """Evaluate comma-separated Erlang expressions, without a dot at the end; return the printed result of the last.

        It takes milliseconds.
        """
        if self.installation.program("erl_call") is None:
            return self.rabbitmqctl("eval", f"{erlang}.", timeout=timeout).strip()
        # A node refuses a second caller with the same name (erl_call's default is c17), also for a moment after the
        # first has disconnected.
        caller = f"call{secrets.token_hex(8)}"
        address = f"{self._host.name}:{self.settings.dist_port}"
        reply = self._tool("erl_call", "-h", caller, "-address", address, "-e", stdin=f"{erlang}.\n", timeout=timeout)
        result = re.fullmatch(r"\{ok, (.*)\}", reply.strip(), re.DOTALL)
        if result is None:
            raise PrivateServerError(f"{self!r} could not evaluate {erlang!r}: {reply.strip()}")
        return result.group(1)

    def vhost(self, name: str) -> str:
        """Add a vhost, with all permissions for guest, and return its URL."""
        vhost, guest, all_, test = map(erlang_binary, (name, "guest", ".*", "test"))
        permit = f"set_permissions({guest}, {vhost}, {all_}, {all_}, {all_}, {test})"
        self.evaluate(f"rabbit_vhost:add({vhost}, {test}), rabbit_auth_backend_internal:{permit}")
        return f"{self.url.removesuffix('/')}{quote(name, safe='')}"

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its queues, exchanges and policies; its clients are disconnected."""
        binary = erlang_binary(name)
        self.evaluate(f"{_SETTLED % binary}, rabbit_vhost:delete({binary}, {erlang_binary('test')})")

    @property
    def _home(self) -> Path:
        if self._dir is None:
            raise PrivateServerError(f"{self!r} is not started: it has no files yet. Call start() first.")
        return self._dir

    def _running(self) -> KeptProcess:
        if self._process is None:
            raise PrivateServerError(f"{self!r} is not started. Call start() first.")
        return self._process

    def _prepare(self) -> KeptProcess:
        tmp = self.installation.root / "tmp" if self.installation.root else Path(tempfile.gettempdir())
        if found := set("\"'\\$`") & set(str(tmp)):
            raise PrivateServerError(
                f"The folder for temporary files, {tmp}, has {''.join(sorted(found))} in its name, which RabbitMQ's "
                "start script does not support. Set TMPDIR to another one."
            )
        self._dir = Path(tempfile.mkdtemp(prefix="rmq-", dir=tmp))
        self.settings.write(self._dir)
        if self.installation.root is not None:
            _name_hosts(self.installation.root / "etc" / "hosts")
        epmd = self.installation.program("epmd") if self._own_epmd else None
        helper = [epmd, "-port", str(self.settings.epmd_port), "-address", self._host.address] if epmd else None
        return KeptProcess(
            self._command(self.installation.server, "-noinput"),
            env=self._env(),
            output=self._dir / "log" / "output.txt",
            helper=self._command(*helper) if helper else None,
            remove=self._dir,
        )

    def _command(self, *argv: str) -> list[str]:
        return self._host.command(*self.installation.command(*argv))

    def _env(self) -> dict[str, str]:
        inside = f"/tmp/{self._home.name}" if self.installation.root else str(self._home)  # noqa: S108 - in the tree
        return self.settings.env(inside, self.installation.path())

    def _is_ready(self) -> bool:
        connection = amqp.Connection(f"127.0.0.1:{self.port}", "guest", "guest", connect_timeout=5, read_timeout=5)
        try:
            connection.connect()
            properties: dict[str, object] = connection.server_properties  # type: ignore[attr-defined]  # set by connect()
            numbers = re.findall(r"\d+", str(properties["version"]))
            self._version = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
        except (OSError, amqp.AMQPError):
            return False
        finally:
            connection.collect()
        return self._serves_management()

    def _serves_management(self) -> bool:
        if self.settings.management_port is None:
            return True
        page = http.client.HTTPConnection("127.0.0.1", self.settings.management_port, timeout=5)  # without a proxy
        try:
            page.request("GET", "/")
            return page.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            page.close()

    def _tool(self, program: str, *args: str, stdin: str = "", timeout: float) -> str:
        path = self.installation.program(program)
        if path is None:
            raise PrivateServerError(f"There is no {program} in the folder of {self.installation.server}.")
        done = subprocess.run(  # noqa: S603 - the caller's own broker
            self._command(path, *args),
            env=self._env(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd="/",
        )
        if done.returncode != 0:
            raise PrivateServerError(
                f"{program} {' '.join(args)} ended with code {done.returncode} on {self!r}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout


def erlang_binary(text: str) -> str:
    """Return a text as an Erlang binary, for `PrivateBroker.evaluate`."""
    return f"<<{','.join(map(str, text.encode()))}>>"


def _name_hosts(hosts: Path) -> None:
    """Add ``localhost`` and this machine's name to the hosts file of a tree.

    A node resolves its machine's name for each connection that it accepts (to send the name of its cluster), and so
    does erl_call; without the file they query a name server, and wait 5 s for each lost reply.
    """
    text = hosts.read_text() if hosts.exists() else ""
    known = {name for line in text.splitlines() for name in line.partition("#")[0].split()[1:]}
    if missing := [name for name in ("localhost", socket.gethostname()) if name not in known]:
        new = hosts.with_name(f"hosts.{secrets.token_hex(4)}")
        new.write_text("".join(f"127.0.0.1 {name}\n" for name in missing) + text)
        new.replace(hosts)
