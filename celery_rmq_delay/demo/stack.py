"""The broker and the worker of the demo, and their removal."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from amqp.exceptions import AMQPError
from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError

from ..amqp.apply import delete_exchange
from ..app.inventory import connect, plans
from ..app.state import state_of
from ..exceptions import PrivateServerError, RmqDelayError
from ..names import moving
from ..redaction import without_credentials
from ..stopping import handling
from ..testing.servers.broker import PrivateBroker
from ..testing.servers.process import KeptProcess, kept_folder, tails
from .worker import NAME, URL

#: Errors of a broker.
BROKER_ERRORS = (AMQPError, KombuError, OSError, RmqDelayError)
#: Seconds in which the worker has to start, and to stop.
START_TIMEOUT, STOP_TIMEOUT = 60.0, 10.0


class DemoError(click.ClickException):
    """The demo cannot run; one line states why, and what to do."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


class WorkerError(Exception):
    """The worker did not do its work; its log may state why."""


@contextmanager
def broker(url: str | None) -> Iterator[str]:
    """Yield the URL of a RabbitMQ: the given one, or that of a private one, which ends with the block."""
    if url is not None:
        yield url
        return
    try:
        private = PrivateBroker()
    except PrivateServerError:
        raise DemoError(
            "No rabbitmq-server was found. Install it (Debian: apt-get install rabbitmq-server; macOS: brew install "
            "rabbitmq), or name a running RabbitMQ with --broker-url amqp://USER:PASSWORD@HOST//."
        ) from None
    click.echo("Starting a private RabbitMQ ...")
    try:
        private.start()
        yield private.url
    except PrivateServerError as error:
        raise DemoError(error) from error
    finally:
        private.close()


def new_name() -> str:
    """Return a name that no other demo on the broker has."""
    return f"rmq_delay_demo_{secrets.token_hex(3)}"


def refused(url: str, error: Exception) -> DemoError:
    """Return the error for a broker that cannot be used."""
    reason = str(error.args[0] if isinstance(error, KeyError) else error).rstrip(".") or type(error).__name__
    return DemoError(
        f"{without_credentials(url)} cannot be used: {reason}. Check the URL and the server, or leave out "
        "--broker-url: then the demo starts a private RabbitMQ."
    )


@contextmanager
def connected(app: Celery) -> Iterator[Connection]:
    """Yield a connection to the app's broker. Raises `DemoError` if its URL is wrong, or it does not accept one."""
    try:
        connection = app.connection_for_read()
        connect(connection)
    except (*BROKER_ERRORS, KeyError, ValueError) as error:  # the last two: a wrong URL
        raise refused(str(app.conf.broker_url), error) from error
    with connection:
        yield connection


@contextmanager
def worker(app: Celery, url: str, name: str) -> Iterator[KeptProcess]:
    """Run a worker of the app in a process of its own, without files in the current folder."""
    with kept_folder("rmq-delay-demo-") as home:
        command = [sys.executable, "-m", "celery", "-A", "celery_rmq_delay.demo.worker", "worker", "--concurrency", "2"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--task-events", "--loglevel", "INFO"]
        log = home / "worker.log"
        process = KeptProcess(
            [*command, *quiet, "--hostname", f"{name}@%h"],
            # The command `celery` prefers BROKER_URL, which may be that of another project, to the app's setting.
            env={**os.environ, "BROKER_URL": str(app.conf.broker_url), URL: url, NAME: name},
            output=log,
        )
        try:
            process.start()
            _wait_until_it_replies(app, process)
            yield process
        except WorkerError as error:
            raise DemoError(f"{error} The end of its log: {tails([log], lines=5)}") from None
        finally:
            with handling(signal.SIG_IGN):
                process.end("term", timeout=STOP_TIMEOUT)
                process.close()


def _wait_until_it_replies(app: Celery, process: KeptProcess) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not app.control.inspect(timeout=0.5, limit=1).ping():
        if not process.is_running() or time.monotonic() > deadline:
            raise WorkerError("The worker did not start.")


@contextmanager
def removed(app: Celery, name: str) -> Iterator[None]:
    """Delete everything that the demo has declared in the broker at the end of the block."""
    try:
        yield
    finally:
        try:
            with app.connection_for_write() as connection:
                connect(connection)
                _delete(app, connection, name)
        except BROKER_ERRORS as error:
            click.echo(f"Queues and exchanges that begin with {name} could not be deleted: {error}", err=True)


def _delete(app: Celery, connection: Connection, name: str) -> None:
    delay = state_of(app)
    (plan,) = plans(connection, delay)
    objects = plan.objects() + delay.exact.topology(connection).frame()
    record = plan.record_queue().name
    control: Any = app.control.mailbox  # type: ignore[attr-defined]  # the stubs lack it
    queues = [plan.queue, record, moving(record), plan.exhausted, *(queue.name for queue in objects.queues)]
    exchanges = [
        name,
        app.conf.event_exchange,
        control.exchange.name,
        control.reply_exchange.name,
        *(exchange.name for exchange in objects.exchanges),
    ]
    with connection.channel() as channel:
        for queue in queues:
            channel.queue_delete(queue)
        for exchange in exchanges:
            delete_exchange(channel, exchange)
