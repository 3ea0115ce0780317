"""A client of RabbitMQ's management HTTP API. Needs the extra ``management`` (httpx)."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from kombu import Connection

from ..amqp.objects import Binding, arguments
from ..exceptions import ManagementError
from ..redaction import without_credentials
from .records import Bindings, Policy, QueueDetail, mapping

if TYPE_CHECKING:
    import httpx

#: The environment variable for the API's base URL where it is not the default port of the broker's host.
URL_VARIABLE = "RMQ_DELAY_MANAGEMENT_URL"
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
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 400, 401, 403, 404

_NAME_IT = f"name its address with --management-url, {URL_VARIABLE} or the setting management_url"
#: The reasons for a user without any tag, and for a wrong password (before and since RabbitMQ 4).
_NO_ACCESS = {"Not management user", "Login failed", "Not_Authorized"}
#: What a user may write with a tag, and what else that needs.
_WRITES = {
    "policymaker": ("write policies", " and permissions on the vhost"),
    "administrator": ("create and delete vhosts", ""),
}


class Management(AbstractContextManager["Management"]):
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
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._vhost = quote(vhost, safe="")
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
        host = connection.hostname or "localhost"
        default = f"{scheme}://{f'[{host}]' if ':' in host else host}:{_PORTS[scheme]}"
        return cls(
            url or os.environ.get(URL_VARIABLE) or setting or default,
            connection.virtual_host or "/",
            connection.userid or "guest",
            connection.password or "guest",
            timeout=timeout,
            tls=connection.ssl,
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP connections."""
        self._http.close()

    def version(self) -> str:
        """Return the version of the broker behind the API."""
        return self._get("overview", lambda overview: str(overview["rabbitmq_version"]))

    def queues(self) -> dict[str, QueueDetail]:
        """Return the queues of the vhost by name."""
        found = self._get(self._path("queues"), lambda queues: list(map(QueueDetail.from_json, queues)), _COLUMNS)
        return {each.name: each for each in found}

    def queue(self, name: str) -> QueueDetail | None:
        """Return one queue; None where the vhost has none of that name."""
        answer = self._request("GET", self._path("queues", name), missing_is_fine=True)
        if answer.status_code == _NOT_FOUND:
            self.policies()  # raises where the vhost or the API is missing, which returns 404, too
            return None
        return self._read(answer, QueueDetail.from_json)

    def consumers(self, queue: str) -> list[str]:
        """Return host and port of the clients that consume a queue, as of the last statistics."""
        answer = self._request("GET", self._path("queues", queue), missing_is_fine=True)
        return [] if answer.status_code == _NOT_FOUND else self._read(answer, _peers)

    def bindings(self) -> Bindings:
        """Return the bindings of the vhost, by (source, destination)."""
        found = Bindings()
        for each in self._get(self._path("bindings"), lambda data: list(map(_binding, data)), ",".join(_BINDING)):
            found.setdefault(each.ends, []).append(each)
        return found

    def exchanges(self) -> dict[str, int]:
        """Return the exchanges of the vhost by name, with the number of messages that each one itself holds."""
        return self._get(
            self._path("exchanges"),
            lambda found: {str(data["name"]): int(data.get("messages_delayed") or 0) for data in found},
            "name,messages_delayed",
        )

    def policies(self) -> list[Policy]:
        """Return the user policies of the vhost."""
        return self._get(self._path("policies"), lambda policies: list(map(Policy.from_json, policies)))

    def put_policy(self, policy: Policy) -> None:
        """Write a user policy, replacing one of the same name. Needs the tag policymaker."""
        self._request("PUT", self._path("policies", policy.name), body=policy.to_json())

    def delete_policy(self, name: str) -> None:
        """Delete a user policy, if it exists. Needs the tag policymaker."""
        answer = self._request("DELETE", self._path("policies", name), missing_is_fine=True)
        if answer.status_code == _NOT_FOUND:
            self.policies()

    def create_vhost(self, description: str) -> None:
        """Create the vhost. Needs the tag administrator."""
        self._request("PUT", self._path("vhosts"), body={"description": description})

    def permit(self, user: str) -> None:
        """Give a user all permissions on the vhost. Needs the tag administrator."""
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._request("PUT", self._path("permissions", user), body=everything)

    def delete_vhost(self) -> None:
        """Delete the vhost with everything in it, if it exists; its clients are disconnected."""
        self._request("DELETE", self._path("vhosts"), missing_is_fine=True)

    def _path(self, kind: str, *names: str) -> str:
        return "/".join([kind, self._vhost, *(quote(name, safe="") for name in names)])

    def _get(self, path: str, read: Callable[[Any], _T], columns: str | None = None) -> _T:
        return self._read(self._request("GET", path, columns=columns), read)

    def _request(
        self, method: str, path: str, *, columns: str | None = None, body: Mapping[str, Any] | None = None,
        missing_is_fine: bool = False,
    ) -> httpx.Response:  # fmt: skip
        try:
            answer = self._http.request(method, path, params={"columns": columns} if columns else None, json=body)
        except self._errors as error:
            raise ManagementError(_connection_problem(error, self.url, self._timeout)) from error
        if answer.status_code in (_UNAUTHORIZED, _FORBIDDEN):
            raise ManagementError(self._access_refused(answer, path))
        if answer.status_code == _NOT_FOUND and not missing_is_fine:
            raise self._not_found(path)
        if answer.status_code == _BAD_REQUEST and method == "GET":
            raise self._not_found("overview")  # RabbitMQ's response to some wrong paths
        if answer.status_code != _NOT_FOUND and (answer.is_error or answer.is_redirect):
            found = f": {_reason(answer)}" if _reason(answer) else ". See the broker's log."
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

    def _access_refused(self, answer: httpx.Response, path: str) -> str:
        needs, found = _NEEDED_TAGS.get(path.partition("/")[0], "monitoring"), _reason(answer)
        code = f"({answer.status_code}{': ' + found if found else ''})"
        start = f"The management API at {self.url} does not let user {self.user!r}"
        if "virtual host" in found:
            return (
                f"{start} see the vhost {self.vhost!r} {code}. Give it permissions there (rabbitmqctl set_permissions)."
            )
        tag = f"give it the tag {needs} (rabbitmqctl set_user_tags {self.user} {needs})"
        if needs in _WRITES and found not in _NO_ACCESS and answer.request.method != "GET":
            action, more = _WRITES[needs]
            return f"{start} {action} {code}. G{tag[1:]}{more}, or use a URL with other credentials."
        return f"{start} in {code}. Check name and password, and {tag}, or use a URL with other credentials."

    def _read(self, answer: httpx.Response, read: Callable[[Any], _T]) -> _T:
        """Return the result of ``read`` for a response. Raises `ManagementError` where it is not from RabbitMQ."""
        try:
            return read(answer.json())
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            problem = f"{self.url} answers, but not as a RabbitMQ management API. Check the URL."
            raise ManagementError(problem) from error


def _binding(data: Mapping[str, Any]) -> Binding:
    source, destination, kind, key, declared = (data[name] for name in _BINDING)
    return Binding(source, destination, kind, key, arguments(mapping(declared)))


def _peers(queue: Mapping[str, Any]) -> list[str]:
    channels = [mapping(each.get("channel_details")) for each in queue.get("consumer_details") or []]
    return sorted({f"{each['peer_host']}:{each['peer_port']}" for each in channels if "peer_host" in each})


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


def _connection_problem(error: Exception, url: str, timeout: float) -> str:
    """Return why a request got no response. ``url`` is the API's, without credentials; ``timeout`` in seconds."""
    import httpx

    if tls := next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None):
        return (
            f"No TLS connection to the management API at {url} ({_words(tls)}). Name its certificate authority with "
            "broker_use_ssl={'ca_certs': ...}, or write http:// if that port does not use TLS."
        )
    if isinstance(error, httpx.ConnectTimeout):
        return f"No connection to the management API at {url} within {timeout:g} s. Check host and port, or {_NAME_IT}."
    if isinstance(error, httpx.TimeoutException):
        return f"The management API at {url} did not answer within {timeout:g} s. Try again when it is less busy."
    if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
        return f"{url} does not answer in HTTP ({_words(error)}). Check scheme and port: https:// if it uses TLS."
    return (
        f"No management API at {url} ({_words(error)}). Enable it (rabbitmq-plugins enable rabbitmq_management), "
        f"or {_NAME_IT}."
    )


def _reason(answer: httpx.Response) -> str:
    """Return RabbitMQ's reason for a refusal; empty where there is none."""
    try:
        return _words(mapping(answer.json()).get("reason", ""))
    except (ValueError, RecursionError):
        return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _words(found: object) -> str:
    words = " ".join(str(found).split())
    return words or type(found).__name__ if isinstance(found, BaseException) else words
