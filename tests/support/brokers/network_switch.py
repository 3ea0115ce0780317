"""Makes a private network for each of several servers, joins them, and forwards ports; ends with its process.

Started as a script, ``python -I -S network_switch.py JSON``, as root, never imported. The JSON array holds an object
for each server: ``address`` and ``gateway`` (its own and the switch's in one /24), ``device`` (the switch's end of the
cable) and ``ports``: connections to these ports of 127.0.0.1 on this machine are handed on to the same ones of the
server.
When all is ready it writes one line: a JSON array of process ids, in whose network namespaces the servers have to run.

Network namespaces live as long as a process in them: the end of this script removes all of them. The machine's own
network is not affected.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_CHUNK = 65_536
_libc = ctypes.CDLL(None, use_errno=True)


def enter_new_network() -> None:
    """Move this process, and those it starts from now on, into a network namespace with loopback only."""
    if _libc.unshare(_CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"no network namespace can be made: {os.strerror(error)}")
    ip("link set lo up")


def ip(*lines: str, of: int | None = None) -> None:
    """Run commands of ``ip`` here, or in the network of another process."""
    enter = [] if of is None else ["nsenter", f"--net=/proc/{of}/ns/net", "--"]
    done = subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"ip failed on {'; '.join(lines)}: {done.stderr.strip()}")


def hold() -> int:
    """Start a process that keeps the present network alive, and return its id."""
    return subprocess.Popen(
        ["sleep", "infinity"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    ).pid


def join(server: dict[str, Any], holder: int) -> None:
    ip(
        f"link add {server['device']} type veth peer name eth0 netns {holder}",
        f"address add {server['gateway']}/24 dev {server['device']}",
        f"link set {server['device']} up",
    )
    ip(
        f"address add {server['address']}/24 dev eth0",
        "link set eth0 up",
        # And no default route: lookups of names fail at once.
        f"route add 10.0.0.0/16 via {server['gateway']}",
        of=holder,
    )


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


async def hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def serve(listener: socket.socket, address: str, port: int) -> None:
    """Forward each connection of a listener to the server's port; one that fails on either side is reset on both."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner: asyncio.StreamWriter | None = None
        try:
            inner_reader, inner = await asyncio.open_connection(address, port)
            await asyncio.gather(hand_on(reader, inner), hand_on(inner_reader, writer))
        except OSError:
            # closed with unread or unsent data, a connection is reset, as clients see it when a server dies
            writer.transport.abort()
        finally:
            for each in (writer, inner):
                if each is not None:
                    each.close()

    await asyncio.start_server(connected, sock=listener)


async def switch(doors: list[tuple[socket.socket, str, int]], holders: list[int]) -> None:
    for door in doors:
        await serve(*door)
    sys.stdout.write(f"{json.dumps(holders)}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main(servers: list[dict[str, Any]]) -> None:
    """Make the networks, then forward connections until killed."""
    # A socket stays in the network it was made in: these are in this machine's.
    doors = [(listen(port), server["address"], port) for server in servers for port in server["ports"]]
    holders = []
    for _ in servers:
        enter_new_network()
        holders.append(hold())
    enter_new_network()
    for server, holder in zip(servers, holders, strict=True):
        join(server, holder)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # of this namespace alone
    asyncio.run(switch(doors, holders))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
