"""A private PostgreSQL server for tests."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from celery_rmq_delay.exceptions import PrivateServerError, ServerNotFoundError
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, PrivateServer, tails, wait_until_ready

START_TIMEOUT = 60.0
"""Seconds a PostgreSQL server may take until it is ready."""
INITDB_TIMEOUT = 300.0
"""Seconds ``initdb`` may take to make the server's files."""

_FOLDERS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
# A commit is written to the files at once, so it survives `kill`, but not a power failure.
_FAST = {"fsync": "off", "full_page_writes": "off"}


class PrivatePostgres(PrivateServer):
    """A PostgreSQL server on 127.0.0.1 that belongs to this process; a context manager.

    >>> with PrivatePostgres() as postgres:  # doctest: +SKIP
    ...     DATABASES = {"default": postgres.django_database()}

    PostgreSQL refuses to run as root: root runs it as the user ``postgres``, or ``nobody`` if there is none. Its
    files are in the folder for temporary files, or in ``/tmp`` if that user cannot enter it. The server ends with
    this process, however that ends, and its files with it.

    :param server: path of the ``postgres`` to run; default: the one in PATH, else the newest one installed.
    :param durable: flush every commit to the disk, as a server in production does; for benchmarks, not for tests.
    :raises ServerNotFoundError: when there is none.
    """

    host = "127.0.0.1"
    user = "postgres"

    def __init__(self, server: str | os.PathLike[str] | None = None, *, durable: bool = False) -> None:
        """Find the server; :meth:`start` or ``with`` starts it."""
        self.server = _find(server)
        self.durable = durable
        self.port = free_port()
        self.password = secrets.token_hex(16)

    def __repr__(self) -> str:
        """Name the server and where it listens."""
        return f"<PrivatePostgres on port {self.port} from {self.server}>"

    @property
    def url(self) -> str:
        """The URL of the database ``postgres``, with the password."""
        return self._url("postgres")

    def start(self) -> None:
        """Start the server, with the data it had if it was stopped or killed, and wait until it is ready.

        Does nothing when it runs.

        :raises ServerStartError: with the tail of its log.
        """
        if self.pid is not None:
            return
        if self._process is None:
            self._process = self._prepare()
        self._process.start()
        wait_until_ready(
            self._is_ready,
            self._process,
            what=f"{self.server} on port {self.port}",
            timeout=START_TIMEOUT,
            logs=[self._log],
        )

    def stop(self) -> None:
        """Disconnect the clients and shut the server down; :meth:`start` brings it back with its data."""
        if self._process is not None and not self._process.end("int", timeout=30):
            self.kill()

    def kill(self) -> None:
        """End the server's processes with SIGKILL, as a crash would; :meth:`start` brings it back with its data."""
        if self._process is not None and not self._process.end("crash", timeout=20):
            raise PrivateServerError(f"{self.server} (process {self.pid}) did not end 20 s after SIGKILL.")

    def close(self) -> None:
        """End the server and delete its data. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL.

        :raises PrivateServerError: when the server refuses, for example because there is one of that name.
        """
        self._tool("createdb", name)
        return self._url(name)

    def drop_database(self, name: str) -> None:
        """Disconnect a database's clients and delete it; does nothing when there is no such database."""
        self._tool("dropdb", "--force", "--if-exists", name)

    def django_database(self, name: str = "postgres") -> dict[str, str]:
        """Return a database's entry for Django's setting ``DATABASES``."""
        return django_database(self._url(name))

    def _url(self, name: str) -> str:
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{quote(name, safe='')}"

    def _prepare(self) -> KeptProcess:
        account = _account()
        folder = tempfile.gettempdir()
        home = Path(tempfile.mkdtemp(prefix="postgres-", dir=folder if _can_enter(folder, account) else "/tmp"))
        self._log = home / "output.txt"
        settings = {"listen_addresses": self.host, "unix_socket_directories": "", **({} if self.durable else _FAST)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        process = KeptProcess(
            [str(self.server), "-D", str(home / "data"), "-p", str(self.port), *options],
            env=_environment(),
            output=self._log,
            remove=home,
            account=account,
            # An immediate shutdown: it frees the kernel's shared memory, which SIGKILL leaves behind.
            farewell=signal.SIGQUIT,
        )
        try:
            self._initialise(process, home, account)
        except BaseException:
            process.close()
            raise
        return process

    def _initialise(self, process: KeptProcess, home: Path, account: tuple[int, int] | None) -> None:
        """Create the files of a server whose only user logs in with the password."""
        password_file = home / "password"
        password_file.write_text(self.password)
        if account:
            os.chown(home, *account)
            os.chown(password_file, *account)
        options = ["--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        initdb = [str(self.server.with_name("initdb")), "-D", str(home / "data"), f"--username={self.user}", *options]
        code = process.run(initdb, timeout=INITDB_TIMEOUT)
        if code != 0:
            end = f"still runs after {INITDB_TIMEOUT:g} s" if code is None else f"ended with code {code}"
            raise PrivateServerError(f"initdb {end}.\n{tails([self._log])}")
        password_file.unlink()

    def _is_ready(self) -> bool:
        return self._run("pg_isready", "--quiet").returncode == 0

    def _tool(self, program: str, *arguments: str) -> None:
        if self.pid is None:
            raise PrivateServerError(f"{program} {' '.join(arguments)}: the server is not running. Call start() first.")
        done = self._run(program, *arguments)
        if done.returncode != 0:
            raise PrivateServerError(f"{program} {' '.join(arguments)} failed:\n{done.stdout}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.server.with_name(program), *arguments],
            env={
                **_environment(),
                "PGHOST": self.host,
                "PGPORT": str(self.port),
                "PGUSER": self.user,
                "PGPASSWORD": self.password,
                "PGDATABASE": "postgres",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
            cwd="/",
        )


def django_database(url: str) -> dict[str, str]:
    """Return the entry for Django's setting ``DATABASES`` of a ``postgresql://`` URL."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }


def _find(server: str | os.PathLike[str] | None) -> Path:
    """Return the path of a ``postgres`` that has ``initdb`` and the client programs beside it."""
    found = shutil.which(os.fspath(server or "postgres"))
    candidates = ([found] if found else []) + ([] if server else _installed())
    for program in (Path(candidate).resolve() for candidate in candidates):
        if program.with_name("initdb").is_file():
            return program
    raise ServerNotFoundError(
        f"No {server or 'postgres'} with an initdb beside it was found in PATH or {', '.join(_FOLDERS)}. Install it "
        "(Debian: apt-get install postgresql; macOS: brew install postgresql), or set POSTGRES_URL to a running one."
    )


def _installed() -> list[str]:
    """Return the servers in the folders of system packages, the newest version first."""
    found = [str(path) for folder in _FOLDERS for path in Path("/").glob(f"{folder[1:]}/postgres")]
    return sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path)], reverse=True)


def _account() -> tuple[int, int] | None:
    """Return the user and the group that the server runs as, or None for those of this process."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise PrivateServerError(
        "PostgreSQL does not run as root, and neither user 'postgres' nor 'nobody' exists. "
        "Run the tests as another user, or set POSTGRES_URL to use a running server."
    )


def _can_enter(folder: str, account: tuple[int, int] | None) -> bool:
    """Return whether a user can enter a folder, and every folder above."""
    if account is None:
        return True
    user, group = account
    for each in (path.stat() for path in (Path(folder).resolve(), *Path(folder).resolve().parents)):
        bit = stat.S_IXUSR if each.st_uid == user else stat.S_IXGRP if each.st_gid == group else stat.S_IXOTH
        if not each.st_mode & bit:
            return False
    return True


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LANG": "C", "LC_ALL": "C"}
