"""The messages quoted on the troubleshooting page are the printed ones."""

import ast
import re
from functools import cache
from pathlib import Path

import celery
import click

import celery_rmq_delay
from celery_rmq_delay.cli import main as cli
from tests.support import ROOT
from tests.support.corpus import corpus
from tests.support.snippets import snippets

PAGE = ROOT / "docs/operate/troubleshoot.md"
QUOTES = [
    (snippet.title, line)
    for snippet in snippets(PAGE)
    if snippet.language == "text"
    for line in snippet.code.splitlines()
]
#: The source of the fences of each title; tests/integration/test_troubleshoot.py checks those of RabbitMQ.
PRINTERS = {"": celery_rmq_delay, "Celery": click}


def strings(source):
    """Yield the texts of a module, with a NUL for each placeholder."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            pieces = [str(each.value) if isinstance(each, ast.Constant) else "\0" for each in node.values]
            yield "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdrg]", "\0", node.value)


@cache
def printed(title):
    """Return all texts that the source of a fence may print."""
    folder = Path(str(PRINTERS[title].__file__)).parent
    return "\n".join(text for path in sorted(folder.rglob("*.py")) for text in strings(path.read_text()))


def pieces(quote):
    """Return the parts of a quoted line between its dots, values and commands, which are printed with the app."""
    found = re.split(r"\.\.\.|'[^']*'|celery -A proj rmq-delay [\w -]+", quote)
    return [piece for piece in found if len(piece.strip(" .:(,)")) > 2]


@corpus("title, line", [quote for quote in QUOTES if quote[0] != "RabbitMQ"])
def test_a_quoted_message_is_printed_by_the_code(title, line):
    assert pieces(line)
    assert [piece for piece in pieces(line) if piece.strip() not in printed(title)] == []


def test_the_page_quotes_celerys_log_line_for_a_revoked_task():
    assert "`Discarding revoked task`" in PAGE.read_text()
    assert "Discarding revoked task" in (Path(celery.__file__).parent / "worker/request.py").read_text()


def test_the_commands_on_the_page_exist():
    commands = re.findall(r"rmq-delay (\w+)", PAGE.read_text())
    assert {"status", "doctor", "adopt", "exhausted", "parked"} <= set(commands)
    assert set(commands) <= set(cli.rmq_delay.commands)
