"""A client of RabbitMQ's management HTTP API. Needs the extra ``management`` (httpx)."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..amqp.objects import Binding, arguments
from ..exceptions import ManagementError
from ..redaction import without_credentials
from .errors import URL_VARIABLE, access_refused, connection_problem, reason
from .records import Bindings, Policy, QueueDetail, mapping

if TYPE_CHECKING:
    import httpx
    from kombu import Connection

__all__ = ["TIMEOUT", "URL_VARIABLE", "Bindings", "Management", "QueueDetail"]

#: Seconds that one request may take.
TIMEOUT = 10.0

_T = TypeVar("_T")

_PORTS = {"http": 15672, "https": 15671}
_COLUMNS = (
    "name,type,arguments,policy,operator_policy,effective_policy_definition,messages_dlx,durable,exclusive,auto_delete,"
    "messages,messages_unacknowledged,messages_delayed,next_delayed_at"
)
_BINDING = ("source", "destination", "destination_type", "routing_key", "arguments")
#: The tag that requests below a path need, where it is not monitoring.
_NEEDED_TAGS = {"policies": "policymaker", "vhosts": "administrator", "permissions": "administrator"}
_EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 400, 401, 403, 404


class Management:
    """A client for one vhost; a context manager.

    ``url`` is the base URL without ``/api``; its credentials override ``user`` and ``password``. ``tls`` has the keys
    of ``broker_use_ssl``, for an ``https`` URL. Every method raises `ManagementError`, with a hint, when the API cannot
    be reached or refuses the user.
    """

    def __init__(
        self, url: str, vhost: str, user: str, password: str, *, timeout: float = TIMEOUT, tls: object = None
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ManagementError(
                "The management API needs httpx. Run pip install 'celery-rmq-delay[management]'."
            ) from error
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ManagementError(
                f"{without_credentials(url)!r} is no URL of a management API: write http://host:15672 or https://..."
            )
        self.vhost, self.user = vhost, unquote(parts.username or "") or user
        netloc = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"
        self._errors: type[Exception] = httpx.HTTPError
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=f"{self.url}/api/",
            auth=(self.user, unquote(parts.password or "") or password),
            timeout=timeout,
            verify=_context(tls) if parts.scheme == "https" else False,
            # RabbitMQ closes a connection after a refused PUT without notice: the next request would fail.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    @classmethod
    def of(
        cls, connection: Connection, url: str | None = None, setting: str | None = None, *, timeout: float = TIMEOUT
    ) -> Management:
        """Return a client for the vhost of an AMQP connection, with its credentials and TLS options.

        The base URL is ``url``, else that of the environment variable `URL_VARIABLE`, else ``setting``, else the
        management plugin's default port on the broker's host.
        """
        scheme = "https" if connection.ssl or connection.transport_cls == "amqps" else "http"
        url = url or os.environ.get(URL_VARIABLE) or setting or f"{scheme}://{_host(connection)}:{_PORTS[scheme]}"
        return cls(
            url,
            connection.virtual_host or "/",
            connection.userid or "guest",
            connection.password or "guest",
            timeout=timeout,
            tls=connection.ssl,
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

    # -- reading -------------------------------------------------------------------------------------------------

    def version(self) -> str:
        """Return the version of the broker behind the API."""
        return self._read(self._request("GET", "overview"), lambda overview: str(overview["rabbitmq_version"]))

    def queues(self) -> dict[str, QueueDetail]:
        """Return the queues of the vhost by name."""
        answer = self._request("GET", f"queues/{self._vhost}", columns=_COLUMNS)
        found = self._read(answer, lambda queues: [QueueDetail.from_json(data) for data in queues])
        return {each.name: each for each in found}

    def queue(self, name: str) -> QueueDetail | None:
        """Return one queue; None where the vhost has none of that name."""
        answer = self._request("GET", f"queues/{self._vhost}/{quote(name, safe='')}", missing_is_fine=True)
        if answer.status_code == _NOT_FOUND:
            self.policies()  # raises where the vhost or the API is missing, which returns 404, too
            return None
        return self._read(answer, QueueDetail.from_json)

    def consumers(self, queue: str) -> list[str]:
        """Return host and port of the clients that consume a queue, as of the last statistics."""
        answer = self._request("GET", f"queues/{self._vhost}/{quote(queue, safe='')}", missing_is_fine=True)
        return [] if answer.status_code == _NOT_FOUND else self._read(answer, _peers)

    def bindings(self) -> Bindings:
        """Return the bindings of the vhost, by (source, destination)."""
        answer = self._request("GET", f"bindings/{self._vhost}", columns=",".join(_BINDING))
        found = Bindings()
        for each in self._read(answer, lambda bindings: [_binding(data) for data in bindings]):
            found.setdefault(each.ends, []).append(each)
        return found

    def exchanges(self) -> dict[str, int]:
        """Return the exchanges of the vhost by name, with the number of messages that each one itself holds."""
        answer = self._request("GET", f"exchanges/{self._vhost}", columns="name,messages_delayed")
        return self._read(
            answer, lambda found: {str(data["name"]): int(data.get("messages_delayed") or 0) for data in found}
        )

    def policies(self) -> list[Policy]:
        """Return the user policies of the vhost."""
        answer = self._request("GET", f"policies/{self._vhost}")
        return self._read(answer, lambda policies: [Policy.from_json(data) for data in policies])

    # -- writing: these need the tag policymaker -----------------------------------------------------------------

    def put_policy(self, policy: Policy) -> None:
        """Write a user policy, replacing one of the same name."""
        self._request("PUT", self._policy(policy.name), body=policy.to_json())

    def delete_policy(self, name: str) -> None:
        """Delete a user policy, if it exists."""
        answer = self._request("DELETE", self._policy(name), missing_is_fine=True)
        if answer.status_code == _NOT_FOUND:
            self.policies()

    def _policy(self, name: str) -> str:
        return f"policies/{self._vhost}/{quote(name, safe='')}"

    # -- vhosts: these need the tag administrator ----------------------------------------------------------------

    def create_vhost(self, description: str) -> None:
        """Create the vhost."""
        self._request("PUT", f"vhosts/{self._vhost}", body={"description": description})

    def permit(self, user: str) -> None:
        """Give a user all permissions on the vhost."""
        self._request("PUT", f"permissions/{self._vhost}/{quote(user, safe='')}", body=_EVERYTHING)

    def delete_vhost(self) -> None:
        """Delete the vhost with everything in it, if it exists; its clients are disconnected."""
        self._request("DELETE", f"vhosts/{self._vhost}", missing_is_fine=True)

    # -- requests ------------------------------------------------------------------------------------------------

    @property
    def _vhost(self) -> str:
        return quote(self.vhost, safe="")

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        missing_is_fine: bool = False,
        **parameters: str,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, params=parameters or None, json=body)
        except self._errors as error:
            raise ManagementError(connection_problem(error, self.url, self._timeout)) from error
        if answer.status_code in (_UNAUTHORIZED, _FORBIDDEN):
            needs = _NEEDED_TAGS.get(path.partition("/")[0], "monitoring")
            raise ManagementError(access_refused(self.url, self.user, self.vhost, answer, needs))
        if answer.status_code == _NOT_FOUND and not missing_is_fine:
            raise self._not_found(path)
        if answer.status_code == _BAD_REQUEST and method == "GET":
            raise self._not_found("overview")  # RabbitMQ's response to some wrong paths
        if answer.status_code != _NOT_FOUND and (answer.is_error or answer.is_redirect):
            found = f": {reason(answer)}" if reason(answer) else ". See the broker's log."
            raise ManagementError(f"{self.url} answered {answer.status_code} to {method} {path}{found}")
        return answer

    def _not_found(self, path: str) -> ManagementError:
        if path == "overview":
            return ManagementError(
                f"{self.url} serves HTTP, but no management API there. Check port and path, or enable it: "
                "rabbitmq-plugins enable rabbitmq_management."
            )
        self.version()
        return ManagementError(
            f"The management API at {self.url} does not know the vhost {self.vhost!r}, or hides it from user "
            f"{self.user!r} (404). The API is that of another broker, or the vhost in broker_url is wrong, or the user "
            "has no permissions there (rabbitmqctl set_permissions)."
        )

    def _read(self, answer: httpx.Response, read: Callable[[Any], _T]) -> _T:
        """Return the result of ``read`` for a response. Raises `ManagementError` where it is not from RabbitMQ."""
        try:
            return read(answer.json())
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise self._not_rabbitmq() from error

    def _not_rabbitmq(self) -> ManagementError:
        return ManagementError(f"{self.url} answers, but not as a RabbitMQ management API. Check the URL.")


def _binding(data: Mapping[str, Any]) -> Binding:
    source, destination, kind, key, declared = (data[name] for name in _BINDING)
    return Binding(source, destination, kind, key, arguments(mapping(declared)))


def _context(options: object) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities and the one in ``options``."""
    # In a broker URL the same keys have the prefix ``ssl_``.
    given = {str(key).removeprefix("ssl_"): value for key, value in mapping(options).items()}
    context = ssl.create_default_context()
    try:
        if given.get("ca_certs"):
            context.load_verify_locations(cafile=given["ca_certs"])
        if given.get("certfile"):
            context.load_cert_chain(given["certfile"], given.get("keyfile"), given.get("password"))
    except OSError as error:  # ssl.SSLError, too
        raise ManagementError(
            f"The certificates in broker_use_ssl cannot be used for the management API ({error}). Check the files."
        ) from error
    no_verification = given.get("cert_reqs") is not None and given["cert_reqs"] == ssl.CERT_NONE
    if no_verification or given.get("check_hostname") is False:
        context.check_hostname = False
    if no_verification:
        context.verify_mode = ssl.CERT_NONE
    return context


def _host(connection: Connection) -> str:
    host = connection.hostname or "localhost"
    return f"[{host}]" if ":" in host else host


def _peers(queue: Mapping[str, Any]) -> list[str]:
    channels = [mapping(each.get("channel_details")) for each in queue.get("consumer_details") or []]
    return sorted({f"{each['peer_host']}:{each['peer_port']}" for each in channels if "peer_host" in each})
