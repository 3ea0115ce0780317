"""A mail server and a webhook on this machine, which keep what they receive and can be set to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


@dataclass
class MailServer:
    """Takes mail; refuses it while ``refusing``."""

    mails: list[EmailMessage] = field(default_factory=list)
    refusing: bool = False
    port: int = 0

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if self.refusing:
            return "451 4.3.0 Try again later"
        found = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(found, EmailMessage)
        self.mails.append(found)
        return "250 2.0.0 Delivered"


@contextmanager
def mail_server(port: int) -> Iterator[MailServer]:
    server = MailServer(port=port)
    controller = Controller(server, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield server
    finally:
        controller.stop()


@dataclass
class Webhook:
    """Takes posts and answers with ``status``; not before ``hold`` is set, and with ``drips`` without an end.

    ``asked``: the number of requests; ``followed``: those after a redirect; ``paths``: what they asked for.
    """

    posts: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    followed: int = 0
    drips: bool = False
    authorizations: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    status: int = 204
    hold: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    hook.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.asked += 1
            hook.paths.append(self.path)
            hook.authorizations.append(self.headers["Authorization"])
            while hook.drips:
                try:
                    self.wfile.write(b"x")
                except OSError:
                    return
                time.sleep(0.05)
            hook.hold.wait(600)
            if hook.status < 300:
                hook.posts.append(json.loads(body))
            self.send_response(hook.status)
            if 300 <= hook.status < 400:
                self.send_header("Location", "/followed")
            self.end_headers()

        def do_GET(self) -> None:
            hook.followed += 1
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing to the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_address[1]}/secret-path"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hook
    finally:
        hook.hold.set()
        hook.drips = False
        server.shutdown()
        server.server_close()
        thread.join()
