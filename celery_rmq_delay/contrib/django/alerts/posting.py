"""Posts JSON to a webhook with the standard library, within a total time."""

from __future__ import annotations

import base64
import json
import socket
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit


class NotSentError(Exception):
    """A webhook did not accept an alert; the message omits the webhook's path, which is often a secret."""


def post(url: str, data: object, *, timeout: float) -> None:
    """Post ``data`` as JSON, through the proxies of the environment. Redirects are not followed.

    Raises `NotSentError` where there is no answer with a status of 200 to 299 within ``timeout`` seconds.
    """
    host = urlsplit(url).hostname
    open_connections = _OpenConnections()
    opener = urllib.request.build_opener(
        _NoRedirects, _http_handler(open_connections), _https_handler(open_connections)
    )
    # The timeout of a socket is that of each read: a server that answers slowly would never reach it.
    timer = threading.Timer(timeout, open_connections.shut)
    timer.daemon = True
    timer.start()
    try:
        opener.open(_request(url, data), timeout=timeout).close()
    except HTTPError as error:
        error.close()
        raise NotSentError(f"{host} answered with status {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        if open_connections.are_shut:
            raise NotSentError(f"{host} did not answer within {timeout:g} s") from None
        reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        raise NotSentError(f"{host}: {type(reason).__name__}") from None
    finally:
        timer.cancel()


def _request(url: str, data: object) -> urllib.request.Request:
    parts = urlsplit(url)
    credentials, _, address = parts.netloc.rpartition("@")
    request = urllib.request.Request(  # noqa: S310 - the setting is an HTTP URL
        parts._replace(netloc=address, fragment="").geturl(),
        data=json.dumps(data).encode(),
        headers={"Content-Type": "application/json", "User-Agent": "celery-rmq-delay"},
        method="POST",
    )
    if credentials:
        encoded = base64.b64encode(unquote(credentials).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return request


class _OpenConnections:
    """The connections of a request, to end them from another thread."""

    def __init__(self) -> None:
        self._found: list[Any] = []
        self.are_shut = False

    def made_by(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def remember(*args: Any, **options: Any) -> Any:
            self._found.append(made := make(*args, **options))
            return made

        return remember

    def shut(self) -> None:
        self.are_shut = True
        for connection in self._found:
            with suppress(OSError, AttributeError):  # not connected, or closed meanwhile
                connection.sock.shutdown(socket.SHUT_RDWR)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _http_handler(connections: _OpenConnections) -> urllib.request.HTTPHandler:
    class Handler(urllib.request.HTTPHandler):
        def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
            return super().do_open(connections.made_by(http_class), req, **options)

    return Handler()


def _https_handler(connections: _OpenConnections) -> urllib.request.HTTPSHandler:
    class Handler(urllib.request.HTTPSHandler):
        def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
            return super().do_open(connections.made_by(http_class), req, **options)

    return Handler()
