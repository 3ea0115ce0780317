"""RabbitMQ's management HTTP API, as far as AMQP does not tell. Needs the extra ``management`` (httpx)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from .exceptions import ManagementError

if TYPE_CHECKING:
    import httpx
    from kombu import Connection

#: The environment variable that names the API's base URL where it is not on the broker's host at the usual port.
URL_VARIABLE = "RMQ_DELAY_MANAGEMENT_URL"
#: Seconds that one request may take.
TIMEOUT = 10.0

_PORTS = {"http": 15672, "https": 15671}
_COLUMNS = "name,type,arguments,policy,effective_policy_definition,messages_dlx"
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404


@dataclass(frozen=True)
class QueueDetail:
    """What the API says of a queue.

    ``policy`` is the name of its user policy, ``policy_definition`` what policies and operator policies together set.
    ``dead_letters_waiting`` counts messages that died and are kept until a queue takes them (quorum, at-least-once).
    """

    name: str
    type: str
    arguments: Mapping[str, Any]
    policy: str | None
    policy_definition: Mapping[str, Any]
    dead_letters_waiting: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> QueueDetail:
        """Read one element of ``/api/queues``; what the broker left out (it does without statistics) is empty."""
        return cls(
            name=data["name"],
            type=data.get("type", "classic"),
            arguments=_mapping(data.get("arguments")),
            policy=data.get("policy") or None,
            policy_definition=_mapping(data.get("effective_policy_definition")),
            dead_letters_waiting=int(data.get("messages_dlx") or 0),
        )


class Management:
    """A client for one vhost; a context manager.

    ``url`` is the base URL without ``/api``; credentials in it come before ``user`` and ``password``. Every method
    raises `ManagementError`, with the mend, when the API cannot be reached or does not let the user in.
    """

    def __init__(self, url: str, vhost: str, user: str, password: str, *, timeout: float = TIMEOUT) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ManagementError(
                "The management API needs httpx. Run pip install 'celery-rmq-delay[management]'."
            ) from error
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ManagementError(f"{url!r} is no URL of a management API: write http://host:15672 or https://...")
        self.vhost, self.user = vhost, parts.username or user
        netloc = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"
        self._errors: type[Exception] = httpx.HTTPError
        self._http = httpx.Client(
            base_url=f"{self.url}/api/", auth=(self.user, parts.password or password), timeout=timeout
        )

    @classmethod
    def of(cls, connection: Connection, url: str | None = None, *, timeout: float = TIMEOUT) -> Management:
        """Return a client for the vhost of an AMQP connection, with its credentials.

        ``url``: the base URL; by default that of the environment variable `URL_VARIABLE`, or the management plugin's
        usual port on the broker's host.
        """
        scheme = "https" if connection.ssl or connection.transport_cls == "amqps" else "http"
        url = url or os.environ.get(URL_VARIABLE) or f"{scheme}://{_host(connection)}:{_PORTS[scheme]}"
        return cls(
            url,
            connection.virtual_host or "/",
            connection.userid or "guest",
            connection.password or "guest",
            timeout=timeout,
        )

    def __enter__(self) -> Management:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP connections."""
        self._http.close()

    def version(self) -> str:
        """Return the version of the broker behind the API."""
        overview = self._get("overview")
        if not isinstance(overview, dict) or "rabbitmq_version" not in overview:
            raise self._stranger()
        return str(overview["rabbitmq_version"])

    def queues(self) -> dict[str, QueueDetail]:
        """Return the queues of the vhost by name."""
        found = self._get(f"queues/{quote(self.vhost, safe='')}", columns=_COLUMNS)
        return {data["name"]: QueueDetail.from_json(data) for data in found}

    def _get(self, path: str, **parameters: str) -> Any:
        try:
            answer = self._http.get(path, params=parameters)
        except self._errors as error:
            raise ManagementError(
                f"No management API at {self.url} ({error}). Enable it (rabbitmq-plugins enable rabbitmq_management), "
                f"or name its address with --management-url or {URL_VARIABLE}."
            ) from error
        self._check(answer)
        try:
            return answer.json()
        except ValueError as error:
            raise self._stranger() from error

    def _stranger(self) -> ManagementError:
        return ManagementError(f"{self.url} answers, but not as a RabbitMQ management API. Check the URL.")

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code in (_UNAUTHORIZED, _FORBIDDEN):
            raise ManagementError(
                f"The management API at {self.url} does not let user {self.user!r} in ({answer.status_code}). Give it "
                f"the tag monitoring (rabbitmqctl set_user_tags {self.user} monitoring), or use a URL with credentials."
            )
        if answer.status_code == _NOT_FOUND:
            raise ManagementError(
                f"The management API at {self.url} does not know the vhost {self.vhost!r} (404). "
                "It is another broker's, or the URL's path is wrong."
            )
        if answer.is_error or answer.is_redirect:
            raise ManagementError(f"{self.url} answered {answer.status_code}. See the broker's log.")


def _host(connection: Connection) -> str:
    host = connection.hostname or "localhost"
    return f"[{host}]" if ":" in host else host


def _mapping(value: object) -> Mapping[str, Any]:
    # Old brokers write an empty object as [].
    return value if isinstance(value, dict) else {}
