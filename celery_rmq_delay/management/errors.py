"""Error messages for failed requests to the management API."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

#: The environment variable for the API's base URL where it is not the default port of the broker's host.
URL_VARIABLE = "RMQ_DELAY_MANAGEMENT_URL"

_NAME_IT = f"name its address with --management-url, {URL_VARIABLE} or the setting management_url"
_NO_PERMISSION = "virtual host"
#: The reasons for a user without any tag, and for a wrong password (before and since RabbitMQ 4).
_NO_ACCESS = {"Not management user", "Login failed", "Not_Authorized"}
#: What a user may write with a tag, and what else that needs.
_WRITES = {
    "policymaker": ("write policies", " and permissions on the vhost"),
    "administrator": ("create and delete vhosts", ""),
}


def connection_problem(error: Exception, url: str, timeout: float) -> str:
    """Return why a request got no response. ``url`` is the API's, without credentials; ``timeout`` in seconds."""
    import httpx

    tls = next((each for each in _causes(error) if isinstance(each, ssl.SSLError)), None)
    if tls is not None:
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


def access_refused(url: str, user: str, vhost: str, answer: httpx.Response, needs: str) -> str:
    """Return why the API refused a user; ``needs`` is the tag that the request requires."""
    found = reason(answer)
    code = f"({answer.status_code}{': ' + found if found else ''})"
    start = f"The management API at {url} does not let user {user!r}"
    if _NO_PERMISSION in found:
        return f"{start} see the vhost {vhost!r} {code}. Give it permissions there (rabbitmqctl set_permissions)."
    if needs in _WRITES and found not in _NO_ACCESS and answer.request.method != "GET":
        action, more = _WRITES[needs]
        return (
            f"{start} {action} {code}. Give it the tag {needs} (rabbitmqctl set_user_tags {user} {needs}){more}, "
            "or use a URL with other credentials."
        )
    return (
        f"{start} in {code}. Check name and password, and give it the tag {needs} "
        f"(rabbitmqctl set_user_tags {user} {needs}), or use a URL with other credentials."
    )


def reason(answer: httpx.Response) -> str:
    """Return RabbitMQ's reason for a refusal; empty where there is none."""
    try:
        data = answer.json()
    except (ValueError, RecursionError):
        return ""
    found = data.get("reason", "") if isinstance(data, dict) else ""
    return " ".join(str(found).split())


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
