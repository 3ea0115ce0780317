"""Invalid arguments: every command ends with an exit code and a message, never with a traceback."""

import socket
from itertools import chain

import click
import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from celery_rmq_delay.cli.main import rmq_delay
from tests.support import hostile
from tests.support.apps import app_of
from tests.support.examples import examples


def commands(group, *before):
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield (*before, name), command


COMMANDS = list(commands(rmq_delay))


@pytest.fixture(scope="module")
def app():
    """An app whose broker accepts no connection."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        yield app_of(broker=f"amqp://ann:hunter2@127.0.0.1:{port}//", task_default_queue="shop")


def invoke(app, *arguments):
    """Run a command; return its output."""
    context = CLIContext(app, no_color=True, workdir=None)
    result = CliRunner().invoke(rmq_delay, arguments, obj=context, input="n\n")
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
    assert result.exit_code in (0, 1, 2)
    assert "hunter2" not in result.output
    assert result.exit_code != 1 or result.output.strip()
    return result.output


def arguments(command):
    """Return lists of options of a command with values of any kind, and of texts that are no options."""
    words = hostile.texts | st.sampled_from(
        ["1", "-1", "0", "10s", "1/s", "2%", "shop", "all", "levels", "1e309", "10GiB"]
    )
    every = [option for each in command.params if isinstance(each, click.Option) for option in each.opts]
    option = st.tuples(st.sampled_from([*every, "--json"]), words).map(list)
    flag = st.sampled_from([*every, "--json", "--", "-h?"]).map(lambda name: [name])
    return st.lists(option | flag | words.map(lambda word: [word]), max_size=5).map(lambda parts: [*chain(*parts)])


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[" ".join(name) for name, _ in COMMANDS])
def test_every_command_takes_or_refuses_its_arguments(app, name, command):
    @examples(0.25, suppress_health_check=list(HealthCheck))
    @given(arguments(command))
    def run(given_arguments):
        # The operating system cannot pass such texts to a process.
        usable = [each.replace("\0", "").encode("utf-8", "replace").decode() for each in given_arguments]
        if "--help" not in usable:
            invoke(app, *name, *usable)

    run()


quantities = hostile.texts | st.sampled_from(
    ["1e309/s", "nan/s", "-1/s", "0/s", "1/0", "1/y", "9" * 5_000 + "/s", "1_0/s"]
)


@given(quantities, quantities, quantities, quantities)
def test_no_load_is_too_strange_for_an_estimate(app, rate, share, size, outage):
    given_ones = [f"--rate={rate}", f"--failure-rate={share}", f"--size={size}", f"--outage={outage}"]
    invoke(app, "capacity", *given_ones)
