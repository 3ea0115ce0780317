"""The broker of a benchmark: a private node, or a running one through its management API; a fresh vhost per run."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from celery_rmq_delay.testing import PrivateBroker, PrivateServerError
from celery_rmq_delay.testing.servers.broker import erlang_binary
from tests.support.brokers.trees import choose

_T = TypeVar("_T")

#: Erlang expressions for the bytes that a node has allocated; the second one collects all garbage first.
MEMORY = "erlang:memory(total)"
COLLECTED_MEMORY = f"lists:foreach(fun erlang:garbage_collect/1, erlang:processes()), {MEMORY}"


class Broker(Protocol):
    """The broker interface that the benchmarks need."""

    version: str
    #: The broker's process, to measure its CPU; None if it cannot be accessed.
    pid: int | None

    def add_vhost(self, name: str) -> str:
        """Add a vhost and return its AMQP URL."""

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its contents."""

    def messages(self, vhost: str, which: str = "messages") -> dict[str, int]:
        """Return the number of messages of each queue of a vhost; ``messages_ready``: only those not delivered."""

    def memory(self, *, collected: bool = True) -> int:
        """Return the bytes of memory of the broker's data; ``collected``: without garbage, if that can be measured."""

    def disk(self) -> int | None:
        """Return the bytes that the broker's files occupy; None if they cannot be accessed."""


class Private:
    """A node that was started for the benchmark."""

    def __init__(self, node: PrivateBroker) -> None:
        self._node = node
        self.version = ".".join(map(str, node.version))
        self.pid = node.pid
        self._data = data_folder(node)

    def add_vhost(self, name: str) -> str:
        return patiently(self._node.vhost, name)

    def delete_vhost(self, name: str) -> None:
        patiently(self._node.delete_vhost, name)

    def messages(self, vhost: str, which: str = "messages") -> dict[str, int]:
        # Names as atoms: only these are always text in the output of `erl_call`.
        listed = patiently(
            self._node.evaluate,
            f"[{{proplists:get_value({which}, Q, 0), binary_to_atom(element(4, proplists:get_value(name, Q)), utf8)}} "
            f"|| Q <- rabbit_amqqueue:info_all({erlang_binary(vhost)}, [name, {which}])]",
        )
        return {name: int(count) for count, name in re.findall(r"\{(\d+),\s*'?([^'}]+)'?\}", listed)}

    def memory(self, *, collected: bool = True) -> int:
        return int(patiently(self._node.evaluate, COLLECTED_MEMORY if collected else MEMORY))

    def disk(self) -> int | None:
        return occupied(self._data)


def data_folder(node: PrivateBroker) -> Path:
    """Return the folder of a node's data."""
    found = patiently(node.evaluate, "element(2, application:get_env(ra, data_dir))").strip('"')
    return Path(f"{node.installation.root or ''}{found}").parent


def occupied(folder: Path) -> int:
    """Return the bytes that the files of a folder occupy on disk, without files that disappear meanwhile."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.lstat().st_blocks * 512
    return found


def patiently(call: Callable[[str], _T], argument: str) -> _T:
    """Call a busy node's tools up to 3 times, so that a long run does not fail because of them."""
    for _ in range(2):
        with suppress(PrivateServerError):
            return call(argument)
        time.sleep(2)
    return call(argument)


class Running:
    """A running broker; ``management_url`` is the base URL of its management API, with credentials."""

    pid = None

    def __init__(self, url: str, management_url: str) -> None:
        self._url, self._api = urlsplit(url), urlsplit(management_url)
        self.version = str(self._call("GET", "/overview")["rabbitmq_version"])

    def add_vhost(self, name: str) -> str:
        quoted = quote(name, safe="")
        self._call("PUT", f"/vhosts/{quoted}")
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        self._call("PUT", f"/permissions/{quoted}/{quote(self._url.username or 'guest', safe='')}", rights)
        return urlunsplit(self._url._replace(path=f"/{quoted}"))

    def delete_vhost(self, name: str) -> None:
        self._call("DELETE", f"/vhosts/{quote(name, safe='')}")

    def messages(self, vhost: str, which: str = "messages") -> dict[str, int]:
        queues = self._call("GET", f"/queues/{quote(vhost, safe='')}")
        return {queue["name"]: queue.get(which, 0) for queue in queues}

    def disk(self) -> int | None:
        return None

    def memory(self, *, collected: bool = True) -> int:
        return sum(int(node.get("mem_used", 0)) for node in self._call("GET", "/nodes"))

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        credentials = f"{self._api.username or 'guest'}:{self._api.password or 'guest'}"
        request = urllib.request.Request(
            f"{self._api.scheme}://{self._api.hostname}:{self._api.port or 15672}/api{path}",
            json.dumps(body or {}).encode() if method == "PUT" else None,
            {
                "Content-Type": "application/json",
                "Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}",
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
        return json.loads(text) if text else None


@contextmanager
def open_broker(
    url: str | None = None,
    management_url: str | None = None,
    root: str | None = None,
    *,
    rabbitmq: str = "system",
    config: str = "",
) -> Iterator[Broker]:
    """Use the broker at ``url``, or start a private one and stop it afterwards: from the tree at ``root``, or the one
    that `tests.support.brokers.trees.choose` returns for ``rabbitmq``, with ``config`` in its configuration file.
    """
    if url is not None:
        yield Running(url, management_url or f"http://guest:guest@{urlsplit(url).hostname}:15672")
        return
    found = choose(rabbitmq) if root is None else None
    with PrivateBroker(found and found.server, found.root if found else root, config=config) as node:
        yield Private(node)
