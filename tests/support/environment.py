"""What the environment may not decide in a test run."""

from __future__ import annotations

import re
from collections.abc import MutableMapping

#: Settings of Celery, Django, Flower, Spark and this package, which would reach real servers or change what a test
#: sees; proxies, as all that tests connect to is on this machine; and what hides that a process does not flush.
#: Where the trees of other RabbitMQ versions are, and where they come from, may be said.
_OTHERS = re.compile(
    r"(CELERY|DJANGO|FLOWER|PYSPARK|SPARK)_.*"
    r"|RMQ_DELAY_(?!BROKER_TREES$|DEBIAN_MIRROR$).*"
    r"|(ALL|FTP|HTTPS?|NO)_PROXY"
    r"|MASTER|PYTHONUNBUFFERED",
    re.IGNORECASE,
)


def clean(environ: MutableMapping[str, str]) -> None:
    """Remove the variables from an environment that would change what tests do."""
    for name in [name for name in environ if _OTHERS.fullmatch(name)]:
        del environ[name]
