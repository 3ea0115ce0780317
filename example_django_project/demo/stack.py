"""Starts what the demo needs and stops it again: RabbitMQ, Redis, the partners, the database, a worker."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import django
import kombu
import redis
from celery_rmq_delay.testing import PrivateBroker, PrivateRedis
from celery_rmq_delay.testing.process import KeptProcess
from django.core.management import call_command

from .outages import feed_outages, mail_outages, payment_outages
from .partners import MailServer, PaymentGateway, SupplierFeeds

PROJECT = Path(__file__).resolve().parents[1]
WORKER_TIMEOUT = 60.0

Step = Callable[[str], Any]


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


class Stack:
    """Everything that runs. A context manager; ``step`` is a context manager that shows what is being started."""

    def __init__(self, step: Step, *, management: bool) -> None:
        self.step, self.management = step, management
        self.gateway = PaymentGateway(payment_outages())
        self.feeds = SupplierFeeds(feed_outages())
        self.mail = MailServer(mail_outages())
        self.broker_url = os.environ.get("BROKER_URL", "")
        self.redis_url = os.environ.get("REDIS_URL", "")
        self.management_url: str | None = None
        self._exit = ExitStack()

    def __enter__(self) -> Stack:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # An impatient second Ctrl-C must not leave a server behind.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._exit.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def worker_log(self) -> Path:
        """The worker's log file."""
        return self.home / "worker.log"

    @property
    def environment_file(self) -> Path:
        """A shell script that exports `environment`."""
        return self.home / "env"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which the project's commands reach this stack."""
        return {
            "DJANGO_SETTINGS_MODULE": "shop.settings_demo",
            "BROKER_URL": self.broker_url,
            "REDIS_URL": self.redis_url,
            "SQLITE_PATH": str(self.home / "shop.sqlite3"),
            "PAYMENT_GATEWAY_URL": self.gateway.url,
            "SUPPLIER_FEED_URL": self.feeds.url,
            "EMAIL_PORT": str(self.mail.port),
            **({"RMQ_DELAY_MANAGEMENT_URL": self.management_url} if self.management_url else {}),
        }

    @property
    def addresses(self) -> dict[str, str]:
        """Where everything listens and writes."""
        found = {
            "RabbitMQ": self.broker_url,
            "RabbitMQ management": self.management_url,
            "Redis": self.redis_url,
            "payment gateway": self.gateway.url,
            "supplier feeds": self.feeds.url,
            "mail server": self.mail.url,
            "worker log": str(self.worker_log),
        }
        return {name: address for name, address in found.items() if address}

    def start_outages(self) -> None:
        """Let the partners' schedules begin."""
        for partner in (self.gateway, self.feeds, self.mail):
            partner.schedule.start()

    def check_worker(self) -> None:
        """Raise `DemoError` when the worker has ended."""
        if not self.worker.is_running():
            raise DemoError(f"The worker ended. The end of its log:\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of the worker's log."""
        return "\n".join(self.worker_log.read_text(errors="replace").splitlines()[-lines:])

    def _check_servers(self) -> None:
        """Raise `DemoError` when a server that somebody named does not answer."""
        if self.broker_url:
            try:
                with kombu.Connection(self.broker_url, connect_timeout=5) as connection:
                    connection.ensure_connection(max_retries=1, timeout=10)
            except kombu.exceptions.OperationalError as error:
                raise DemoError(f"BROKER_URL={self.broker_url} does not answer: {error}") from error
        if self.redis_url:
            try:
                redis.Redis.from_url(self.redis_url, socket_connect_timeout=5).ping()
            except redis.RedisError as error:
                raise DemoError(f"REDIS_URL={self.redis_url} does not answer: {error}") from error

    def _start(self) -> None:
        self._check_servers()
        self.home = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="rmq-delay-demo-")))
        if not self.broker_url:
            with self.step("RabbitMQ"):
                broker = self._exit.enter_context(PrivateBroker(management=self.management))
            self.broker_url, self.management_url = broker.url, broker.management_url
        if not self.redis_url:
            with self.step("Redis"):
                self.redis_url = self._exit.enter_context(PrivateRedis()).url
        with self.step("payment gateway, suppliers, mail server"):
            for partner in (self.gateway, self.feeds, self.mail):
                self._exit.enter_context(partner)
        with self.step("database"):
            os.environ.update(self.environment)
            sys.path.insert(0, str(PROJECT))
            django.setup()
            call_command("migrate", verbosity=0)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        self.environment_file.write_text("\n".join([*lines, ""]))
        with self.step("worker: celery -A shop worker --concurrency 2"):
            self._start_worker()

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "shop", "--workdir", str(PROJECT)]
        self.worker = KeptProcess(
            [*command, "worker", "--concurrency", "2", "--loglevel", "INFO"],
            env={**os.environ, **self.environment},
            output=self.worker_log,
        )
        self._exit.callback(self._stop_worker)
        self.worker.start()
        from shop.celery import app

        deadline = time.monotonic() + WORKER_TIMEOUT
        while not app.control.ping(timeout=0.5):
            self.check_worker()
            if time.monotonic() > deadline:
                raise DemoError(f"The worker did not answer within {WORKER_TIMEOUT:.0f} s.\n{self.log_tail()}")

    def _stop_worker(self) -> None:
        self.worker.end("term", timeout=8)
        self.worker.close()


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that everything is stopped."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
