"""Users of a broker with the permissions that `docs/explanation/security.md` gives to each role."""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple
from urllib.parse import urlsplit

from celery_rmq_delay.testing import PrivateBroker
from tests.support import ROOT

PAGE = ROOT / "docs/explanation/security.md"
#: A secret that no log may contain.
PASSWORD = "hunter2-s3cr3t-of-the-broker"


class Permissions(NamedTuple):
    """What a user may declare, publish into or bind, and consume or bind from: regular expressions."""

    configure: str
    write: str
    read: str


def roles() -> dict[str, Permissions]:
    """Return the table of the page."""
    found = {}
    for line in PAGE.read_text().splitlines():
        if row := re.fullmatch(r"\| (\w[\w ]*) \| `(.*?)` \| `(.*?)` \| `(.*?)` \|", line):
            found[row[1]] = Permissions(*(each.replace("\\|", "|") for each in row.groups()[1:]))
    return found


def add_user(broker: PrivateBroker, url: str, permissions: Permissions) -> str:
    """Return the URL of a new user with these permissions on the vhost of ``url``."""
    name, vhost = f"u{uuid.uuid4().hex[:8]}", urlsplit(url).path[1:] or "/"
    patterns = ", ".join(f'<<"{_escaped(each)}">>' for each in permissions)
    broker.evaluate(
        f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{PASSWORD}">>, <<"test">>), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"{vhost}">>, {patterns}, <<"test">>)'
    )
    return f"amqp://{name}:{PASSWORD}@127.0.0.1:{broker.port}/{vhost}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
