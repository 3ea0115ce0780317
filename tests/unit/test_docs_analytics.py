"""The reference of the analytics agrees with commands and tables."""

import re
from collections import defaultdict

import click

from celery_rmq_delay.analytics.cli import main
from celery_rmq_delay.history.tables import TABLES
from tests.support import ROOT
from tests.support.corpus import corpus

PAGE = (ROOT / "docs/reference/analytics.md").read_text()
#: Its options are documented in its help.
LEFT_OUT = {"synth"}


def cells(section):
    """Return the rows of a section's tables, without the headings."""
    lines = [line for line in PAGE.split(section, 1)[1].split("\n#", 1)[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_option_of_every_command_is_documented_and_no_other():
    documented = defaultdict(set)
    for options, commands, *_ in cells("\n## Options\n"):
        for command in re.findall(r"`([\w-]+)`", commands):
            documented[command] |= set(re.findall(r"`(--[\w-]+)", options))
    real = {
        name: {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for name, command in main.commands.items()
        if name not in LEFT_OUT
    }
    assert documented == real


def test_every_command_is_documented():
    assert {row[0].strip("`") for row in cells("# Analytics: commands and tables\n")} == set(main.commands)


def test_defaults_are_as_documented():
    described = {name: row[-1] for row in cells("\n## Options\n") for name in re.findall(r"`(--[\w-]+)", row[0])}
    for option in main.commands["run"].params:
        if isinstance(option, click.Option) and option.show_default:
            assert re.search(rf"[;.,] `?{option.default}`?\b", described[option.opts[0]]), option.opts[0]


@corpus("table", tuple(TABLES))
def test_every_column_of_every_table_is_documented_and_no_other(table):
    written = set(TABLES[table])
    names = {name for row in cells(f"\n### `{table}`\n") for name in re.findall(r"`(\w+)`", row[0])}
    intervals = {f"{name}{end}" for name in names for end in ("_low", "_high")} & written
    assert names | intervals == written
    assert PAGE.split("\n## Tables\n")[1].split(f"\n### `{table}`\n\n")[1].startswith("A row ")
