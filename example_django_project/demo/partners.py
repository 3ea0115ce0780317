"""The shop's partners as servers on this machine: a payment gateway, suppliers' price lists, a mail server.

``python -m demo.partners`` in the project's folder (``python -m example_django_project.demo.partners`` above it) runs
all three on fixed ports, for a shop started manually.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import socketserver
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from celery_rmq_delay.stopping import handling

from .outages import Mood, Schedule, feed_outages, mail_outages, payment_outages

#: Seconds a slow gateway takes: more than the shop's client waits.
SLOW_GATEWAY = 1.3
SLOW_MAIL = 0.2
LOST_SHARE = 0.3


class Partner:
    """A server in its own threads; a context manager. Port 0 selects a free port."""

    name = "partner"
    short_name = "partner"
    handler: type[socketserver.BaseRequestHandler]

    def __init__(self, schedule: Schedule, host: str = "127.0.0.1", port: int = 0) -> None:
        self.schedule = schedule
        self.chance = random.Random(7)
        self.lock = threading.Lock()
        self._server = self._listen((host, port))
        self._server.partner = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name=self.name, daemon=True)

    def _listen(self, address: tuple[str, int]) -> Any:
        return _HttpServer(address, self.handler)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


class _HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30
    server: Any

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client did not wait
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep the terminal for the demo."""


class _Charges(_HttpHandler):
    def do_POST(self) -> None:
        gateway: PaymentGateway = self.server.partner
        order = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        mood, _ = gateway.schedule.now()
        lost = mood is Mood.FLAKY and gateway.chance.random() < LOST_SHARE
        if mood is Mood.DOWN or (lost and gateway.chance.random() < 0.5):
            self.reply(503, b'{"error": "We are down for maintenance."}')
            return
        status, answer = gateway.charge(self.headers["Idempotency-Key"], order["card"], order["amount"])
        if lost:  # the worst kind of failure: the card is charged, but the answer is lost
            self.close_connection = True
            return
        if mood is Mood.SLOW:
            time.sleep(SLOW_GATEWAY if gateway.chance.random() < 0.5 else 0.1)
        self.reply(status, json.dumps(answer).encode())


class PaymentGateway(Partner):
    """Accepts ``POST /charges``. An idempotency key is charged once, even if the request is repeated.

    While flaky, it loses three answers in ten, half of them after it charged the card.
    """

    name = "payment gateway"
    short_name = "payments"
    handler = _Charges

    def __init__(self, *args: Any, **options: Any) -> None:
        self.ledger: dict[str, tuple[str, str]] = {}
        self.repeats = 0
        super().__init__(*args, **options)

    def charge(self, key: str, card: str, amount: str) -> tuple[int, dict[str, str]]:
        """Charge the card once; return HTTP status and answer."""
        with self.lock:
            if card == "tok_stolen":
                return 402, {"error": "The card was reported stolen."}
            if card == "tok_bank_away":
                return 502, {"error": "The card's bank does not answer."}
            self.repeats += key in self.ledger
            charge_id, _ = self.ledger.setdefault(key, (f"ch_{len(self.ledger) + 1:06}", amount))
            return 200, {"id": charge_id}


class _Feeds(_HttpHandler):
    def do_GET(self) -> None:
        if self.server.partner.schedule.now()[0] is Mood.DOWN:
            self.reply(503, b"", "text/plain")
            return
        lines = ["sku,price", *(f"{sku:05},{sku / 100:.2f}" for sku in range(100, 120))]
        self.reply(200, "\n".join(lines).encode(), "text/csv")


class SupplierFeeds(Partner):
    """Serves ``GET /<supplier>.csv``."""

    name = "supplier feeds"
    short_name = "suppliers"
    handler = _Feeds


class _Smtp(socketserver.StreamRequestHandler):
    """The part of RFC 5321 that a mail client needs."""

    timeout = 30
    disable_nagle_algorithm = True
    server: Any

    def handle(self) -> None:
        mood, _ = self.server.partner.schedule.now()
        if mood is Mood.DOWN:
            self.send("421 4.3.2 We are down for maintenance")
            return
        self.send("220 example mail server")
        while line := self.rfile.readline(1000):
            verb = line[:4].upper().strip()
            if verb == b"DATA":
                self.send("354 Go ahead")
                self.take()
                if mood is Mood.SLOW:
                    time.sleep(SLOW_MAIL)
                self.send("250 2.0.0 Delivered")
            elif verb == b"QUIT":
                self.send("221 2.0.0 Bye")
                return
            elif verb in {b"EHLO", b"HELO", b"MAIL", b"RCPT", b"RSET", b"NOOP"}:
                self.send("250 OK")
            else:
                self.send("502 5.5.1 Not here")

    def send(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())

    def take(self) -> None:
        message_id = ""
        while (line := self.rfile.readline(10_000)) not in {b".\r\n", b""}:
            if line.lower().startswith(b"message-id:"):
                message_id = line.split(b":", 1)[1].strip().decode()
        with self.server.partner.lock:
            self.server.partner.delivered[message_id.strip("<>").partition("@")[0]] += 1


class _SmtpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that close the connection."""


class MailServer(Partner):
    """Accepts mails by SMTP; ``delivered`` counts them by the local part of their Message-ID."""

    name = "mail server"
    short_name = "mail"
    handler = _Smtp

    def __init__(self, *args: Any, **options: Any) -> None:
        self.delivered: Counter[str] = Counter()
        super().__init__(*args, **options)

    def _listen(self, address: tuple[str, int]) -> Any:
        return _SmtpServer(address, self.handler)

    @property
    def url(self) -> str:
        """Its URL."""
        return f"smtp://127.0.0.1:{self.port}"


def main() -> None:
    """Run the three partners until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    host = parser.parse_args().host
    partners = (
        PaymentGateway(payment_outages(), host, 8081),
        SupplierFeeds(feed_outages(), host, 8082),
        MailServer(mail_outages(), host, 2525),
    )
    for partner in partners:
        partner.schedule.start()
        partner.__enter__()
        print(f"{partner.name} on port {partner.port}", flush=True)
    printed = ""
    while True:
        moods = ", ".join(f"{partner.name} {partner.schedule.now()[0].value}" for partner in partners)
        if moods != printed:
            print(moods, flush=True)
            printed = moods
        time.sleep(0.5)


if __name__ == "__main__":
    # A background job inherits SIGINT as ignored; the first process of a container would ignore SIGTERM.
    with contextlib.suppress(KeyboardInterrupt), handling(signal.default_int_handler):
        main()
