"""Environment variables and limits of a test run."""

import os
import re
import resource
import signal
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from celery_rmq_delay.testing.servers.process import kept_folder

#: Settings of Celery, Django, Flower, Spark, monitoring products and this package, which would reach real servers or
#: change what a test sees; those of PostgreSQL's clients; proxies, as all that tests connect to is on this machine;
#: colours, which are codes in a text; and what changes Python itself, for example hides that a process does not flush.
#: The variables for the trees of other RabbitMQ versions, their mirror, and the distributions of a release stay.
_OTHERS = re.compile(
    r"(CELERY|DD|DJANGO|ELASTIC_APM|FLOWER|NEW_RELIC|OTEL|PYSPARK|SENTRY|SPARK)_.*"
    r"|RMQ_DELAY_(?!BROKER_TREES$|DEBIAN_MIRROR$|DIST$).*"
    r"|(ALL|FTP|HTTPS?|NO)_PROXY"
    r"|(FORCE|NO)_COLOR|PY_COLORS|PYTHON(DEVMODE|OPTIMIZE|SAFEPATH|UNBUFFERED)"
    r"|MASTER|PG[A-Z]+",
    re.IGNORECASE,
)


def clean(environ: MutableMapping[str, str]) -> None:
    """Remove the variables from an environment that would change what tests do."""
    for name in [name for name in environ if _OTHERS.fullmatch(name)]:
        del environ[name]


#: Characters of a folder that leave room below it for the sockets of Python and Chromium: 107 are the limit.
ROOM_FOR_SOCKETS = 45
#: A file system in memory: with it a broker's tests take a fifth less time, as its queues write all they get.
MEMORY = "/dev/shm"
#: Bytes that a file system in memory must have left.
ROOM_FOR_FILES = 8 * 2**30


def place_of_temporary_files() -> str:
    """Return the folder for temporary files: TMPDIR, else memory if it has room, else Python's choice.

    Where the name leaves no room for sockets, it is ``/tmp``.
    """
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK):
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize >= ROOM_FOR_FILES and not found.f_flag & os.ST_NOEXEC:
            return MEMORY
    inside = tempfile.gettempdir()
    return inside if len(inside) <= ROOM_FOR_SOCKETS else "/tmp"


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Put temporary files, also those of servers and browsers, into a folder that is deleted when this process ends.

    A killed process counts, too. pytest keeps the folders of the last tests where it always does.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    with kept_folder("tests-", inside=place_of_temporary_files()) as folder:
        folder.chmod(0o711)  # for PostgreSQL, which runs as another user than root
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        yield


#: Open files and connections of a test process, and of each server that it starts.
FILES = 1_024


def have_files() -> None:
    """Raise the number of files that a process may open to `FILES`, where it is lower.

    :raises RuntimeError: when the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        return
    if hard != resource.RLIM_INFINITY and hard < FILES:
        raise RuntimeError(
            f"These tests need {FILES:,} open files, and this process may have {hard:,} at most. Raise the hard limit: "
            f"`ulimit -Hn {FILES}` as root, or LimitNOFILE of the service that starts them."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


def take_signals() -> None:
    """Undo what a process may have inherited: SIGCHLD ignored, and any signal blocked.

    While SIGCHLD is ignored, the exit codes of children are lost; while SIGALRM is blocked, tests have no time limit.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
