"""A private PostgreSQL server for tests."""

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

_FOLDERS = ("usr/lib/postgresql/*", "usr/pgsql-*", "opt/homebrew/opt/postgresql*", "usr/local/opt/postgresql*")
# A commit is written to the files at once, so it survives `kill`, but not a power failure.
_FAST = {"fsync": "off", "full_page_writes": "off"}
_ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "LANG": "C", "LC_ALL": "C"}


class PrivatePostgres(PrivateServer):
    """A PostgreSQL server on 127.0.0.1 that belongs to this process; a context manager.

    PostgreSQL refuses to run as root: root runs it as the user ``postgres``, or ``nobody`` if there is none. Its
    files are in the folder for temporary files, or in ``/tmp`` if that user cannot enter it.

    :param durable: flush every commit to the disk, as a server in production does; for benchmarks, not for tests.
    :raises ServerNotFoundError: when there is none.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.server, self.durable = _find(), durable
        self.port, self.password = free_port(), secrets.token_hex(16)

    def __repr__(self) -> str:
        return f"<PrivatePostgres on port {self.port} from {self.server}>"

    @property
    def url(self) -> str:
        """The URL of the database ``postgres``, with the password."""
        return self._url("postgres")

    def start(self) -> None:
        """Start the server, with the data it had if it was stopped or killed; does nothing when it runs."""
        if self.pid is not None:
            return
        if self._process is None:
            self._process = self._prepare()
        self._process.start()
        wait_until_ready(self._is_ready, self._process, what=repr(self), timeout=60, logs=[self._log])

    def stop(self) -> None:
        """Disconnect the clients and shut the server down; :meth:`start` brings it back with its data."""
        if self._process is not None and not self._process.end("int", timeout=30):
            self.kill()

    def kill(self) -> None:
        """End the server's processes with SIGKILL, as a crash would; :meth:`start` brings it back with its data."""
        if self._process is not None and not self._process.end("crash", timeout=20):
            raise PrivateServerError(f"{self!r} (process {self.pid}) did not end 20 s after SIGKILL.")

    def close(self) -> None:
        """End the server and delete its data. Safe to call twice."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def create_database(self, name: str) -> str:
        self._tool("createdb", name)
        return self._url(name)

    def drop_database(self, name: str) -> None:
        """Disconnect a database's clients and delete it; does nothing when there is no such database."""
        self._tool("dropdb", "--force", "--if-exists", name)

    def django_database(self, name: str = "postgres") -> dict[str, str]:
        """Return a database's entry for Django's setting ``DATABASES``."""
        return django_database(self._url(name))

    def _url(self, name: str) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{quote(name, safe='')}"

    def _prepare(self) -> KeptProcess:
        """Make the files of a server whose only user logs in with the password."""
        account, folder = _account(), tempfile.gettempdir()
        home = Path(tempfile.mkdtemp(prefix="postgres-", dir=folder if _can_enter(folder, account) else "/tmp"))
        self._log, password_file = home / "output.txt", home / "password"
        password_file.write_text(self.password)
        if account:
            for path in (home, password_file):
                os.chown(path, *account)
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **({} if self.durable else _FAST)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        process = KeptProcess(
            [str(self.server), "-D", str(home / "data"), "-p", str(self.port), *options],
            env=_ENVIRONMENT,
            output=self._log,
            remove=home,
            account=account,
            # An immediate shutdown: it frees the kernel's shared memory, which SIGKILL leaves behind.
            farewell=signal.SIGQUIT,
        )
        initdb = [str(self.server.with_name("initdb")), "-D", str(home / "data"), "--username=postgres"]
        initdb += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8", "--no-locale", "--no-sync"]
        try:
            if (code := process.run(initdb, timeout=300)) != 0:
                raise PrivateServerError(f"initdb ended with code {code}; None: not in 300 s.\n{tails([self._log])}")
            password_file.unlink()
        except BaseException:
            process.close()
            raise
        return process

    def _is_ready(self) -> bool:
        return self._run("pg_isready", "--quiet").returncode == 0

    def _tool(self, program: str, *arguments: str) -> None:
        done = self._run(program, *arguments)
        if done.returncode != 0:
            raise PrivateServerError(f"{program} {' '.join(arguments)} failed:\n{done.stdout}")

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        names = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres", "PGDATABASE": "postgres"}
        return subprocess.run(
            [self.server.with_name(program), *arguments],
            env={**_ENVIRONMENT, **names, "PGPASSWORD": self.password},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
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


def _find() -> Path:
    """Return a ``postgres`` with ``initdb`` beside it: the one in PATH, else the newest of the system packages."""
    installed = [str(path) for folder in _FOLDERS for path in Path("/").glob(f"{folder}/bin/postgres")]
    installed.sort(key=lambda path: [int(number) for number in re.findall(r"\d+", path)], reverse=True)
    for program in filter(None, (shutil.which("postgres"), *installed)):
        if (found := Path(program).resolve()).with_name("initdb").is_file():
            return found
    raise ServerNotFoundError(
        "No postgres with an initdb beside it was found in PATH or where system packages have it. Install it "
        "(Debian: apt-get install postgresql; macOS: brew install postgresql), or set POSTGRES_URL to a running one."
    )


def _account() -> tuple[int, int] | None:
    """Return the user and the group that the server runs as, or None for those of this process."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return entry.pw_uid, entry.pw_gid


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
