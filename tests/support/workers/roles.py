"""Users of a broker with the permissions that `docs/explanation/security.md` gives to each role."""

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


#: May do anything but publish a message with an exact delay.
NO_LEVELS = Permissions(".*", r"^(?!.*\.levels\.).*$", ".*")


def roles() -> dict[str, Permissions]:
    found = {}
    for line in PAGE.read_text().splitlines():
        if row := re.fullmatch(r"\| (\w[\w ]*) \| `(.*?)` \| `(.*?)` \| `(.*?)` \|", line):
            found[row[1]] = Permissions(*(each.replace("\\|", "|") for each in row.groups()[1:]))
    return found


def add_user(broker: PrivateBroker, url: str, permissions: Permissions) -> str:
    """Return the URL of a new user with these permissions on the vhost of ``url``."""
    name, vhost = f"u{uuid.uuid4().hex[:8]}", urlsplit(url).path[1:] or "/"
    broker.evaluate(f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{PASSWORD}">>, <<"test">>)')
    user = f"amqp://{name}:{PASSWORD}@127.0.0.1:{broker.port}/{vhost}"
    permit(broker, user, permissions)
    return user


def permit(broker: PrivateBroker, url: str, permissions: Permissions) -> None:
    """Give the user of ``url`` these permissions instead of earlier ones."""
    parts = urlsplit(url)
    patterns = ", ".join(f'<<"{_escaped(each)}">>' for each in permissions)
    names = f'<<"{parts.username}">>, <<"{parts.path[1:]}">>'
    broker.evaluate(f'rabbit_auth_backend_internal:set_permissions({names}, {patterns}, <<"test">>)')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
