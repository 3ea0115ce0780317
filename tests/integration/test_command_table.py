"""Every command with `--help`, with `--json` as docs/reference/cli.md has it, and with one wrong use."""

import pytest

from celery_rmq_delay.cli.main import rmq_delay
from celery_rmq_delay.management.client import URL_VARIABLE
from tests.support import command_table
from tests.support.apps import app_of
from tests.support.commands import run


@pytest.mark.slow
def test_each_command_prints_what_the_tables_have(managed, managed_vhost, monkeypatch):
    monkeypatch.setenv(URL_VARIABLE, str(managed.management_url))
    table, errors = command_table.tables(command_table.make_shop(managed_vhost))
    text = command_table.PAGE.read_text().partition(command_table.BEGIN)[2].partition(command_table.END)[0]
    for found, wanted in ((table, text), (errors, command_table.ERRORS.read_text())):
        assert found.splitlines() == wanted.splitlines(), "run python -m tests.support.command_table"


def test_the_table_has_every_command_and_each_explains_itself():
    every = dict(command_table.commands(rmq_delay))
    assert set(command_table.USES) == set(every)
    app = app_of(broker="amqp://127.0.0.1:1//")
    for name, command in every.items():
        shown = run(app, *name.split(), "--help").output
        assert shown.startswith(f"Usage: rmq-delay {name} ")
        assert all(option in shown for param in command.params for option in param.opts if option[0] == "-")
