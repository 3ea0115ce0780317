"""A RabbitMQ that was running before: it is neither started nor stopped, and its vhosts are not touched."""

from __future__ import annotations

import socket
from urllib.parse import quote, urlsplit

import kombu

from ...exceptions import ManagementError
from ...management.client import Management
from ...redaction import without_credentials

#: Seconds to wait for a broker that does not answer.
_TIMEOUT = 10.0
_SCHEMES = {"amqp", "amqps", "pyamqp"}
_DESCRIPTION = "for one test of celery-rmq-delay's pytest plugin, which deletes it"


class ExternalBroker:
    """A running RabbitMQ, in which tests get vhosts of their own. Needs the extra ``management`` for that.

    :param url: its AMQP URL, or several with ``;`` between them.
    :param management_url: base URL of its management API, with or without credentials; default: that of the environment
        variable ``RMQ_DELAY_MANAGEMENT_URL``, else the API's default port on the broker's host.
    """

    def __init__(self, url: str, management_url: str | None = None) -> None:
        self.url = url
        self._management_url = management_url
        self._refusal: ManagementError | None = None

    def vhost(self, name: str) -> str:
        """Create a vhost, with all permissions for the user of ``url``, and return its URL.

        Raises `ManagementError` when the management API cannot be reached or refuses to; the next calls raise the same
        at once.
        """
        if self._refusal is None:
            try:
                self._create(name)
            except ManagementError as error:
                self._refusal = self._absence() or error
        if self._refusal is not None:
            raise self._refusal
        return ";".join(_in_vhost(each, name) for each in self.url.split(";"))

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost that `vhost` created. Raises `ManagementError` when the management API cannot do it."""
        with self._management(name) as management:
            management.delete_vhost()

    def _create(self, name: str) -> None:
        with self._management(name) as management:
            management.create_vhost(_DESCRIPTION)
            try:
                management.permit(kombu.Connection(self.url).userid or "guest")
            except ManagementError:
                management.delete_vhost()
                raise

    def _absence(self) -> ManagementError | None:
        """Return why the broker itself cannot be reached, which is then the reason for all that failed."""
        if not self._is_rabbitmq:
            return None
        known = kombu.Connection(self.url).info()
        host, port = known["hostname"], known["port"]
        try:
            socket.create_connection((host, port), timeout=_TIMEOUT).close()
        except OSError as error:
            return ManagementError(f"No RabbitMQ at {host}:{port} ({error}). Start it, or correct the URL.")
        return None

    @property
    def _is_rabbitmq(self) -> bool:
        return urlsplit(self.url).scheme in _SCHEMES

    def _management(self, vhost: str) -> Management:
        if not self._is_rabbitmq:
            raise ManagementError(f"{without_credentials(self.url)!r} is no URL of RabbitMQ: write amqp://host//.")
        connection = kombu.Connection(self.url)
        connection.virtual_host = vhost
        return Management.of(connection, self._management_url)


def _in_vhost(url: str, vhost: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc or "localhost", path=f"/{quote(vhost, safe='')}").geturl()
