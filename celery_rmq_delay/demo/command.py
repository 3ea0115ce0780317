"""``python -m celery_rmq_delay demo``: its broker, its worker, and their removal."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from ..stopping import exit_at_once, handling, stop_behind
from ..testing.servers.broker import PrivateBroker
from ..testing.servers.process import KeptProcess, kept_folder, tails
from .orders import ORDERS, make_app
from .screen import NEXT, Outcomes, Screen, Seen, observe, summary
from .worker import NAME, URL

#: Errors of a broker.
BROKER_ERRORS = (AMQPError, KombuError, OSError, RmqDelayError)
#: Seconds in which the worker has to start, and to stop.
START_TIMEOUT, STOP_TIMEOUT = 60.0, 10.0


class _DemoError(click.ClickException):
    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


class _WorkerError(Exception):
    """The worker did not do its work; its log may state why."""


@contextmanager
def _broker(url: str | None) -> Iterator[str]:
    """Yield the URL of a RabbitMQ: the given one, or that of a private one, which ends with the block."""
    if url is not None:
        yield url
        return
    try:
        private = PrivateBroker()
    except PrivateServerError:
        raise _DemoError(
            "No rabbitmq-server was found. Install it (Debian: apt-get install rabbitmq-server; macOS: brew install "
            "rabbitmq), or name a running RabbitMQ with --broker-url amqp://USER:PASSWORD@HOST//."
        ) from None
    click.echo("Starting a private RabbitMQ ...")
    try:
        private.start()
        yield private.url
    except PrivateServerError as error:
        raise _DemoError(error) from error
    finally:
        private.close()


def _refused(url: str, error: Exception) -> _DemoError:
    reason = str(error.args[0] if isinstance(error, KeyError) else error).rstrip(".") or type(error).__name__
    return _DemoError(
        f"{without_credentials(url)} cannot be used: {reason}. Check the URL and the server, or leave out "
        "--broker-url: then the demo starts a private RabbitMQ."
    )


@contextmanager
def _connected(app: Celery) -> Iterator[Connection]:
    """Yield a connection to the app's broker. Raises `_DemoError` if its URL is wrong, or it does not accept one."""
    try:
        connection = app.connection_for_read()
        connect(connection)
    except (*BROKER_ERRORS, KeyError, ValueError) as error:  # the last two: a wrong URL
        raise _refused(str(app.conf.broker_url), error) from error
    with connection:
        yield connection


@contextmanager
def _worker(app: Celery, url: str, name: str) -> Iterator[KeptProcess]:
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
        except _WorkerError as error:
            raise _DemoError(f"{error} The end of its log: {tails([log], lines=5)}") from None
        finally:
            with handling(signal.SIG_IGN):
                process.end("term", timeout=STOP_TIMEOUT)
                process.close()


def _wait_until_it_replies(app: Celery, process: KeptProcess) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not app.control.inspect(timeout=0.5, limit=1).ping():
        if not process.is_running() or time.monotonic() > deadline:
            raise _WorkerError("The worker did not start.")


@contextmanager
def _removed(app: Celery, name: str) -> Iterator[None]:
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


POLL_EVERY = 0.2
#: Seconds in which all tasks have to end: the ladder is 17 s long.
DEADLINE = 60.0


@click.group()
def main() -> None:
    """Commands that need no app. Those for your app: celery -A YOUR_APP rmq-delay."""


@main.command()
@click.option("--broker-url", metavar="URL", help="Use this RabbitMQ, and delete the demo's queues afterwards.")
def demo(broker_url: str | None) -> None:
    """Show retries that wait in RabbitMQ: twenty tasks, a worker and a ladder of three tiers, for half a minute.

    Starts a private RabbitMQ, if rabbitmq-server is installed. Exit code 0 when all tasks have ended, 1 on an error.
    """
    if broker_url == "":
        raise click.BadParameter("found an empty text; write a URL such as amqp://guest:guest@localhost//")
    stack = ExitStack()
    with handling(exit_at_once):
        try:
            _run(stack, broker_url)
        except SystemExit:
            click.echo("Stopped.")
            raise
        finally:
            with handling(signal.SIG_IGN):  # a second Ctrl-C must leave nothing behind
                stack.close()
    click.echo(NEXT)


def _run(stack: ExitStack, given: str | None) -> None:
    """Start everything, and show the demo; ``stack`` ends everything."""
    url, name = stack.enter_context(_broker(given)), f"rmq_delay_demo_{secrets.token_hex(3)}"
    try:
        app = make_app(url, name)
        stack.callback(app.close)
        connection = stack.enter_context(_connected(app))
        if given is not None:
            stack.enter_context(_removed(app, name))
        outcomes = stack.enter_context(Outcomes(app))
        click.echo("Starting a worker with two processes ...")
        with _worker(app, url, name) as process:
            _show(app, connection, outcomes, process)
    except BROKER_ERRORS as error:
        if stop := stop_behind(error):
            raise stop from None
        raise _refused(url, error) from error


def _show(app: Celery, connection: Connection, outcomes: Outcomes, process: KeptProcess) -> None:
    """Publish the tasks, and show their state until all have ended."""
    task: Any = app.tasks["charge"]
    for failures in ORDERS:
        task.delay(failures)
    begin, screen = time.monotonic(), Screen()
    waited: Seen | None = None
    while True:
        time.sleep(POLL_EVERY)
        seen = observe(app, connection, outcomes)
        seconds = time.monotonic() - begin
        screen.show(seen, seconds)
        if seen.held is not None and seen.parked and (waited is None or _waits_more(seen, waited)):
            waited = seen
        if seen.ended == len(ORDERS):
            break
        if not process.is_running():
            raise _WorkerError("The worker ended.")
        if seconds > DEADLINE:
            raise _WorkerError(f"{len(ORDERS) - seen.ended} tasks have not ended within {DEADLINE:.0f} s.")
    for line in summary(seen, waited, seconds):
        click.echo(line)


def _waits_more(seen: Seen, other: Seen) -> bool:
    return (-(seen.held or 0), seen.parked) > (-(other.held or 0), other.parked)
