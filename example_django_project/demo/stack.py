"""Start and stop everything that the demo needs: servers, partners, database, worker, collector and web server."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import django
import kombu
import redis
from celery_rmq_delay.stopping import STOP_SIGNALS, exit_at_once, handling
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.host import free_port
from celery_rmq_delay.testing.servers.process import KeptProcess, kept_folder, wait_until_ready
from django.core.management import call_command
from tests.support.servers.redis import PrivateRedis

from .outages import feed_outages, mail_outages, payment_outages
from .partners import MailServer, PaymentGateway, SupplierFeeds

PROJECT = Path(__file__).resolve().parents[1]
WORKER_TIMEOUT = 60.0
WEB_TIMEOUT = 60.0
ANALYTICS_TIMEOUT = 300.0
#: Seconds after which a signal that has not ended the demo is raised again.
AGAIN = 5.0
#: For a JVM that runs only some seconds: with less compilation it takes half the time.
SHORT_LIVED = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Name and password of the admin's superuser: the shop listens on loopback only, and is deleted with the demo.
LOGIN = ("admin", "admin")

Step = Callable[[str], Any]


class DemoError(Exception):
    """The demo cannot continue; the message states why."""


class Stack:
    """All processes of the demo. A context manager; ``step`` is a context manager that shows what is being started."""

    def __init__(self, step: Step, *, management: bool, admin: bool = False) -> None:
        self.step, self.management, self.admin = step, management, admin
        self.web_url = ""
        self._served: dict[str, KeptProcess] = {}
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
        with handling(signal.SIG_IGN, signal.SIGALRM, *STOP_SIGNALS):
            self._exit.close()

    @property
    def worker_log(self) -> Path:
        """The worker's log file."""
        return self._log("worker")

    @property
    def environment_file(self) -> Path:
        """A shell script that exports `environment`."""
        return self.home / "env"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which the project's commands use this stack."""
        return {
            "DJANGO_SETTINGS_MODULE": "shop.settings_demo",
            "BROKER_URL": self.broker_url,
            "REDIS_URL": self.redis_url,
            "SQLITE_PATH": str(self.home / "shop.sqlite3"),
            "HISTORY_URL": str(self.home / "history"),
            "PAYMENT_GATEWAY_URL": self.gateway.url,
            "SUPPLIER_FEED_URL": self.feeds.url,
            "EMAIL_PORT": str(self.mail.port),
            **({"RMQ_DELAY_MANAGEMENT_URL": self.management_url} if self.management_url else {}),
        }

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses and log files of everything."""
        found = {
            "RabbitMQ": self.broker_url,
            "RabbitMQ management": self.management_url,
            "Redis": self.redis_url,
            "payment gateway": self.gateway.url,
            "supplier feeds": self.feeds.url,
            "mail server": self.mail.url,
            "worker log": str(self.worker_log),
            "shop": self.web_url,
            "admin": f"{self.web_url}/admin/   log in as {LOGIN[0]}, password {LOGIN[1]}" if self.web_url else "",
        }
        return {name: address for name, address in found.items() if address}

    def start_outages(self) -> None:
        """Start the partners' schedules."""
        for partner in (self.gateway, self.feeds, self.mail):
            partner.schedule.start()

    def check_processes(self) -> None:
        """Raise `DemoError` when the worker, or one of the admin's processes, has ended."""
        for name, process in {"worker": self.worker, **self._served}.items():
            if not process.is_running():
                raise DemoError(f"The {name} ended. The end of its log:\n{self.log_tail(name)}")

    def analyse(self) -> None:
        """Run the analytics over the collector's history, and load the results into the admin.

        Takes half a minute, most of it for Spark to start. Raises `DemoError`.
        """
        with self.step("analytics of what failed: manage.py rmq_delay_insights"):
            analytics = self._manage("analytics", "rmq_delay_insights", "--master", "local[2]", "--conf", SHORT_LIVED)
            deadline = time.monotonic() + ANALYTICS_TIMEOUT
            while analytics.is_running():
                if time.monotonic() > deadline:
                    raise DemoError(
                        f"The analytics took more than {ANALYTICS_TIMEOUT:.0f} s.\n{self.log_tail('analytics')}"
                    )
                time.sleep(0.1)
        if analytics.exit_code:
            raise DemoError(f"The analytics failed. The end of their log:\n{self.log_tail('analytics')}")

    def log_tail(self, name: str = "worker", lines: int = 40) -> str:
        """Return the last lines of a process's log."""
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-lines:])

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _check_servers(self) -> None:
        """Raise `DemoError` if a server named in the environment does not answer."""
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
        self.home = self._exit.enter_context(kept_folder("rmq-delay-demo-"))
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
            (self.home / "history").mkdir()
            os.environ.update(self.environment)
            sys.path.insert(0, str(PROJECT))
            django.setup()
            call_command("migrate", verbosity=0)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        self.environment_file.write_text("\n".join([*lines, ""]))
        with self.step("worker: celery -A shop worker --concurrency 2"):
            self._start_worker()
        if self.admin:
            self._start_admin()

    def _start_admin(self) -> None:
        """Start the collector, the operator and the web server of the admin."""
        from django.contrib.auth import get_user_model  # needs Django's settings

        get_user_model().objects.create_superuser(LOGIN[0], password=LOGIN[1])
        with self.step("collector, operator, web server"):
            self._serve("collector", "rmq_delay_collect", "--file-seconds", "1")
            self._serve("operator", "rmq_delay_operate")
            port = free_port()
            web = self._serve("web server", "runserver", "--noreload", f"127.0.0.1:{port}")
            url, log = f"http://127.0.0.1:{port}", self._log("web server")
            wait_until_ready(
                lambda: _answers(f"{url}/admin/login/"),
                web,
                what=f"the web server {url}",
                timeout=WEB_TIMEOUT,
                logs=[log],
            )
            self.web_url = url

    def _serve(self, name: str, *command: str) -> KeptProcess:
        process = self._served[name] = self._manage(name, *command)
        return process

    def _manage(self, name: str, *command: str) -> KeptProcess:
        process = KeptProcess(
            [sys.executable, str(PROJECT / "manage.py"), *command],
            env=self._inherited(),
            output=self._log(name),
            farewell=signal.SIGTERM,
        )
        self._exit.callback(process.close)
        process.start()
        return process

    def _inherited(self) -> dict[str, str]:
        """Return the environment of a process; its temporary files are in the demo's folder."""
        return {**os.environ, **self.environment, "TMPDIR": str(self.home)}

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "shop", "--workdir", str(PROJECT)]
        self.worker = KeptProcess(
            [*command, "worker", "--concurrency", "2", "--loglevel", "INFO"],
            env=self._inherited(),
            output=self.worker_log,
        )
        self._exit.callback(self._stop_worker)
        self.worker.start()
        from shop.celery import app

        deadline = time.monotonic() + WORKER_TIMEOUT
        while not app.control.ping(timeout=0.5):
            self.check_processes()
            if time.monotonic() > deadline:
                raise DemoError(f"The worker did not answer within {WORKER_TIMEOUT:.0f} s.\n{self.log_tail()}")

    def _stop_worker(self) -> None:
        self.worker.end("term", timeout=8)
        self.worker.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turn SIGINT into `KeyboardInterrupt`, SIGTERM and SIGHUP into `SystemExit`, so that everything is stopped.

    SIGINT even if it is inherited as ignored, as shells start background jobs so. SIGHUP stays ignored if it is
    inherited as ignored, for ``nohup``. A signal may interrupt a request to a server, and then the cleanup waits for an
    answer that never comes: the exception is raised again every `AGAIN` seconds until the block has ended.
    """
    ending = {signal.SIGINT, signal.SIGTERM}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ending.add(signal.SIGHUP)
    first: int | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal first
        first = first or number
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        if first == signal.SIGINT:
            raise KeyboardInterrupt
        exit_at_once(first, frame)

    try:
        with handling(end, signal.SIGALRM, *ending):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
