"""Finds an installed RabbitMQ server and its programs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...exceptions import ServerNotFoundError

_CANDIDATES = (
    "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server",  # Debian, Ubuntu, Fedora
    "usr/lib/rabbitmq/bin/rabbitmq-server",
    "opt/homebrew/opt/rabbitmq/sbin/rabbitmq-server",  # Homebrew on Apple silicon
    "usr/local/opt/rabbitmq/sbin/rabbitmq-server",  # Homebrew on Intel
    "opt/rabbitmq/sbin/rabbitmq-server",  # the official container image
    "usr/local/sbin/rabbitmq-server",
)
_ERLANG_TOOLS = (
    "usr/lib/erlang/erts-*/bin",
    "usr/local/lib/erlang/erts-*/bin",
    "opt/homebrew/opt/erlang/lib/erlang/erts-*/bin",
    "usr/local/opt/erlang/lib/erlang/erts-*/bin",
    "opt/erlang/lib/erlang/erts-*/bin",
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Installation:
    """A RabbitMQ installation on this machine, or in the chroot tree ``root`` on it.

    ``server`` is the ``rabbitmq-server`` script as seen from inside ``root``.
    """

    server: str
    root: Path | None = None

    @classmethod
    def find(
        cls, server: str | os.PathLike[str] | None = None, root: str | os.PathLike[str] | None = None
    ) -> Installation:
        """Find the installation to use: by default that in PATH, or in the usual places; `ServerNotFoundError` if none.

        ``server``: a ``rabbitmq-server`` script. ``root``: a chroot tree to search.
        """
        tree = Path(root).resolve() if root is not None else None
        if tree is not None and os.geteuid() != 0:
            raise ServerNotFoundError(
                f"The RabbitMQ in the tree {tree} needs chroot, which only root may do: run as root."
            )
        base = tree or Path("/")
        if server is not None:
            found = base / os.fspath(server).lstrip("/") if tree else Path(server).absolute()
            if not found.is_file():
                raise ServerNotFoundError(
                    f"There is no rabbitmq-server at {found}. Pass the path of one, or none to search for it."
                )
            if not _insists_on_user(found):
                return cls(_inside(found, tree), tree)
        for found in _candidates(base, in_path=tree is None):
            return cls(_inside(found, tree), tree)
        where = f"in the tree {tree}" if tree else "in PATH or the usual places"
        raise ServerNotFoundError(
            f"No rabbitmq-server was found {where}. Install it (Debian: apt-get install rabbitmq-server; "
            "macOS: brew install rabbitmq), or set BROKER_URL to use a running broker."
        )

    @classmethod
    def named(cls, name: str) -> Installation:
        """Return the installation for the option ``--rabbitmq NAME``. Raises `ServerNotFoundError`, with a hint.

        ``name``: ``system``, or the path of a rabbitmq-server or of a chroot tree.
        """
        if name == "system":
            return cls.find()
        path = Path(name)
        if path.is_dir():
            return cls.find(root=path)
        if path.is_file():
            return cls.find(server=path)
        raise ServerNotFoundError(
            f"--rabbitmq {name}: expected system, or the path of a rabbitmq-server or of a chroot tree."
        )

    @property
    def version(self) -> str | None:
        """The RabbitMQ version, such as ``3.10.8``, from the names of installed files; None if it is not in them."""
        base = self.root or Path("/")
        home = (base / self.server.lstrip("/")).resolve().parents[1]
        for name in [home.name, *(found.name for found in home.glob("plugins/rabbit-[0-9]*"))]:
            if found := re.fullmatch(r"(?:rabbitmq_server|rabbit)-(\d+\.\d+\.\d+).*", name):
                return found.group(1)
        return None

    def program(self, name: str) -> str | None:
        """Return the path of an Erlang or RabbitMQ program as seen from inside the root, or None."""
        base = self.root or Path("/")
        beside = Path(self.server).with_name(name)
        if (base / str(beside).lstrip("/")).is_file():
            return str(beside)
        if self.root is None and (found := shutil.which(name, path=self.path())):
            return found
        for pattern in _ERLANG_TOOLS:
            for folder in sorted(base.glob(pattern), reverse=True):
                if (folder / name).is_file():
                    return _inside(folder / name, self.root)
        return None

    def path(self) -> str:
        """Return the PATH for programs of this installation."""
        return _SYSTEM_PATH if self.root else f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".lstrip(":")

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` by exec, inside the root if there is one.

        The tree gets /proc and /dev in a mount namespace of the process, so nothing stays mounted after it.
        """
        if self.root is None:
            return list(argv)
        script = 'mount --bind /proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"'
        return ["unshare", "--mount", "--", "sh", "-c", script, str(self.root), *argv]


def _inside(path: Path, root: Path | None) -> str:
    return f"/{path.relative_to(root)}" if root else str(path)


def _candidates(base: Path, *, in_path: bool) -> Iterator[Path]:
    if in_path and (found := shutil.which("rabbitmq-server")) and not _insists_on_user(Path(found)):
        yield Path(found)
    for pattern in _CANDIDATES:
        for path in sorted(base.glob(pattern), reverse=True):
            if path.is_file() and not _insists_on_user(path):
                yield path


def _insists_on_user(script: Path) -> bool:
    """Return whether this is a packager's wrapper that runs only as root or rabbitmq and ignores the environment."""
    return bool(re.search(r"id -u.? rabbitmq", script.read_text(errors="replace")))
