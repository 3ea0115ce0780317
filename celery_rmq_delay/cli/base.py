"""Shared parts of the commands: the frame that reports errors and prints results, options and connections."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple

import click
from amqp.exceptions import AMQPError
from celery import Celery
from celery.bin.base import CeleryCommand
from kombu import Connection
from kombu.exceptions import KombuError

from ..app.inventory import connect
from ..app.state import AppState, find_state, state_of
from ..commands import PLACEHOLDER, command
from ..exceptions import RmqDelayError, SelectionError, SettingsError
from ..management.client import URL_VARIABLE, Management
from ..stopping import exit_at_once, handling, interrupted_in_time, stop_behind

#: Characters that a terminal may take for commands; a message may have them in its task's name or id.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: The exit code for pending changes.
CHANGES_WAIT = 2


class Command(CeleryCommand):
    """A command that reports an error in one line; those of several tasks in one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with interrupted_in_time():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the process that reads the output has closed the pipe
        except SelectionError as error:
            raise click.UsageError(str(error), ctx) from error
        except SettingsError as error:
            if error.setting.startswith("--"):
                raise click.UsageError(str(error), ctx) from error
            raise click.ClickException("\n".join(map(_line, str(error).splitlines()))) from error
        except RmqDelayError as error:
            raise click.ClickException(_without_app(ctx) or _line(error)) from error
        except (AMQPError, KombuError, OSError) as error:
            if stop := stop_behind(error):
                raise stop from None
            where = ctx.obj.app.connection_for_read().as_uri()
            raise click.ClickException(f"{where}: {_line(error) or type(error).__name__}") from error


def _without_app(ctx: click.Context) -> str:
    """Return the error of a command that was typed without ``-A``; empty if it has an app with delay queues."""
    typed = ctx.find_root().params
    if typed.get("app", ctx) or find_state(ctx.obj.app):
        return ""
    words = ctx.command_path.partition(" rmq-delay ")[2]
    return f"-A is missing: `{command(words)}`, where {PLACEHOLDER} is the module of your app."


def _line(error: object) -> str:
    return " ".join(str(error).split())


class Output(NamedTuple):
    """What a command prints: ``data`` with ``--json``, else ``text``; None: it has printed it. Then its exit code."""

    data: Any
    text: str | None
    exit_code: int = 0


def command_of(*options: Callable[[Any], Any], name: str | None = None) -> Callable[[Any], click.Command]:
    """Make a command of a function that gets the context and returns its `Output`; it gets ``--json``, too."""

    def decorate(function: Callable[..., Output]) -> click.Command:
        @wraps(function)
        def run(ctx: click.Context, as_json: bool, **given: Any) -> None:
            data, text, exit_code = function(ctx, **given)
            if as_json:
                click.echo(json.dumps(data, indent=2, default=str))
            elif text is not None:
                click.echo(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
            ctx.exit(exit_code)

        decorated: Any = run
        for option in reversed((*options, click.option("--json", "as_json", is_flag=True, help="Print JSON."))):
            decorated = option(decorated)
        return click.command(name, cls=Command)(click.pass_context(decorated))

    return decorate


only = click.option("--queue", "only", multiple=True, help="Only this origin queue; may be given several times.")
verbose_option = partial(click.option, "--verbose", is_flag=True)
limit_option = click.option("--limit", type=click.IntRange(1), help="At most this many messages.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required with --json.")
no_management_option = click.option("--no-management", is_flag=True, help="Do not use the management API.")
management_option = click.option("--management-url", help=f"Base URL of the management API; also {URL_VARIABLE}.")


@contextmanager
def connected(app: Celery) -> Iterator[tuple[AppState, Connection]]:
    """Connect to the app's broker."""
    delay = state_of(app)
    with app.connection_for_read() as connection:
        connect(connection)
        yield delay, connection


def management_of(delay: AppState, connection: Connection, url: str | None) -> Management:
    """Return a client of the management API, at ``url`` if that is set."""
    return Management.of(connection, url, delay.settings.management_url)


def require_answer(ctx: click.Context, *, answered: bool) -> None:
    """Raise a usage error where a command with ``--json`` would ask."""
    if ctx.params["as_json"] and not answered:
        raise click.UsageError("--json does not ask for confirmation: add --yes.")


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM was received; a second one ends the process at once."""
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        if received:
            exit_at_once(number, frame)
        received.append(number)

    with handling(receive):
        yield lambda: bool(received)
