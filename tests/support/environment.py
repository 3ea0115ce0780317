"""What the environment may not decide in a test run."""

from __future__ import annotations

import re
import signal
from collections.abc import MutableMapping

#: Settings of Celery, Django, Flower, Spark and this package, which would reach real servers or change what a test
#: sees; those of PostgreSQL's clients; proxies, as all that tests connect to is on this machine; and what hides that a
#: process does not flush.
#: Where the trees of other RabbitMQ versions are, and where they come from, may be said.
_OTHERS = re.compile(
    r"(CELERY|DJANGO|FLOWER|PYSPARK|SPARK)_.*"
    r"|RMQ_DELAY_(?!BROKER_TREES$|DEBIAN_MIRROR$).*"
    r"|(ALL|FTP|HTTPS?|NO)_PROXY"
    r"|MASTER|PYTHONUNBUFFERED|PG[A-Z]+",
    re.IGNORECASE,
)


def clean(environ: MutableMapping[str, str]) -> None:
    """Remove the variables from an environment that would change what tests do."""
    for name in [name for name in environ if _OTHERS.fullmatch(name)]:
        del environ[name]


def take_signals() -> None:
    """Undo what a process may have inherited: SIGCHLD ignored, and any signal blocked.

    While SIGCHLD is ignored, the exit codes of children are lost; while SIGALRM is blocked, tests have no time limit.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
