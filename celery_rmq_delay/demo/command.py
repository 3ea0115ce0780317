"""``python -m celery_rmq_delay demo``."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..stopping import exit_at_once, handling, stop_behind
from .orders import ORDERS, make_app
from .screen import NEXT, Screen, summary
from .stack import BROKER_ERRORS, WorkerError, broker, connected, new_name, refused, removed, worker
from .watch import Outcomes, Seen, observe

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from ..testing.servers.process import KeptProcess

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
    url, name = stack.enter_context(broker(given)), new_name()
    try:
        app = make_app(url, name)
        stack.callback(app.close)
        connection = stack.enter_context(connected(app))
        if given is not None:
            stack.enter_context(removed(app, name))
        outcomes = stack.enter_context(Outcomes(app))
        click.echo("Starting a worker with two processes ...")
        with worker(app, url, name) as process:
            _show(app, connection, outcomes, process)
    except BROKER_ERRORS as error:
        if stop := stop_behind(error):
            raise stop from None
        raise refused(url, error) from error


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
            raise WorkerError("The worker ended.")
        if seconds > DEADLINE:
            raise WorkerError(f"{len(ORDERS) - seen.ended} tasks have not ended within {DEADLINE:.0f} s.")
    for line in summary(seen, waited, seconds):
        click.echo(line)


def _waits_more(seen: Seen, other: Seen) -> bool:
    return (-(seen.held or 0), seen.parked) > (-(other.held or 0), other.parked)
