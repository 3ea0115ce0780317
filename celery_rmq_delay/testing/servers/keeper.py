"""Runs a private server and ends all its processes when its owner requests it or dies.

Started as a script, ``python -I -S keeper.py JSON``, never imported. The JSON object holds ``env`` (the environment of
the commands), ``output`` (file that gets their stdout and stderr), ``helper`` (a second command that runs as long as
the keeper, or null), ``remove`` (a directory to delete at the end), ``account`` (the ids of the user and the group that
run the commands, or null) and ``farewell`` (the number of a signal to send before the final SIGKILL, or null).

Reads lines on stdin: ``start COMMAND`` (a JSON list), ``term``, ``int``, ``kill``, ``crash`` (SIGKILL to the server and
to its children) and ``quit``. Writes lines on stdout: ``started PID``, ``exited CODE``, ``failed REASON``. The end of
stdin or of the parent process ends the keeper as ``quit`` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05
_FAREWELL_SECONDS = 5
_SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT, "kill": signal.SIGKILL}


def _prctl(option: int, value: int) -> None:
    """Set an option of the Linux kernel for orphaned processes; do nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class Keeper:
    """Runs one server process and an optional helper process, as the owner orders."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.server: subprocess.Popen[bytes] | None = None
        self.has_started = False
        self.helper = self._spawn(spec["helper"]) if spec["helper"] else None

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        user, group = self.spec["account"] or (None, None)
        with Path(self.spec["output"]).open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - the command is the owner's
                command,
                env=self.spec["env"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                # Runs after the change of user, which would reset the signal.
                preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )

    def obey(self, line: str) -> None:
        """Carry out one order."""
        order, _, command = line.partition(" ")
        if order == "start" and self.server is None:
            self.has_started = True
            try:
                self.server = self._spawn(json.loads(command))
            except OSError as error:
                report(f"failed {error}")
            else:
                report(f"started {self.server.pid}")
        elif self.server is not None and order in _SIGNALS:
            self.server.send_signal(_SIGNALS[order])
        elif self.server is not None and order == "crash":
            self._crash(self.server)

    def _crash(self, server: subprocess.Popen[bytes]) -> None:
        """Kill a server with its children and wait until they have released shared resources."""
        server.send_signal(signal.SIGSTOP)  # it starts no more children
        children = _children(server.pid)
        server.kill()
        server.wait()
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)  # adopted when its parent died

    def notice_exit(self) -> None:
        """Report a server that ended; a helper may end if the server started its own."""
        if self.helper is not None and self.helper.poll() is not None:
            self.helper = None
        if self.server is not None and self.server.poll() is not None:
            code, self.server = self.server.returncode, None
            report(f"exited {code}")

    def reap_orphan(self) -> None:
        """Take the exit status of one adopted process, so that it does not stay a zombie."""
        if sys.platform != "linux":
            return
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None and ended.si_pid not in {p.pid for p in (self.server, self.helper) if p is not None}:
                os.waitpid(ended.si_pid, 0)

    def end(self, *, in_order: bool) -> None:
        """Kill what runs, orphans included, and delete the directory; ``in_order``: the owner has requested it."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.server is not None and self.spec["farewell"]:
            self.server.send_signal(self.spec["farewell"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(timeout=_FAREWELL_SECONDS)
        for process in (self.server, self.helper):
            if process is not None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.wait()
        self._end_orphans()
        if self.spec["remove"]:
            if not in_order and not self.has_started:
                time.sleep(2 * _FAREWELL_SECONDS)  # other processes write there, and are being ended by their keepers
            shutil.rmtree(self.spec["remove"], ignore_errors=True)

    def _end_orphans(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for pid in _children(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    time.sleep(_POLL_SECONDS)
            except ChildProcessError:
                return


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # pid (name) state ppid ...; a name may hold spaces and brackets
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def report(line: str) -> None:
    """Write a line to the owner, which may have ended."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def main(spec: dict[str, Any]) -> None:
    """Carry out orders until the order ``quit``."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # If inherited, these would hide exit codes from the keeper, and signals from its server.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    owner = os.getppid()
    keeper = Keeper(spec)
    in_order = False
    try:
        buffer = b""
        # The owner's forked children may hold the pipe open after its death, hence the check of the parent's pid.
        while os.getppid() == owner:
            keeper.notice_exit()
            keeper.reap_orphan()
            if not select.select([0], [], [], _POLL_SECONDS)[0]:
                continue
            chunk = os.read(0, 4096)
            *orders, buffer = (buffer + chunk).split(b"\n")
            for order in orders:
                keeper.obey(order.decode())
            in_order = b"quit" in orders
            if not chunk or in_order:
                return
    finally:
        keeper.end(in_order=in_order)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
