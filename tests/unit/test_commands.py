"""The commands that texts name: with the app that the reader has to name, and what they print without one."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
from celery import Celery
from celery.bin.base import CLIContext

import celery_rmq_delay
from celery_rmq_delay import commands, install
from celery_rmq_delay.cli.main import rmq_delay
from celery_rmq_delay.commands import command
from tests.support.command_table import commands as all_commands
from tests.support.corpus import corpus

PACKAGE = Path(celery_rmq_delay.__file__).parent


def made(name="shop"):
    app = Celery(name, set_as_current=False)
    install(app)
    return app


@corpus(
    "module, attribute, named",
    [
        ("till", "app", "till"),
        ("till", "celery", "till"),
        ("till", "queue_app", "till:queue_app"),
        ("till.celery", "app", "till"),
        ("till.deep.jobs", "app", "till.deep.jobs"),
        ("__main__", "till_app", "shop"),
        ("till", None, "shop"),
    ],
)
def test_a_text_names_the_app_by_the_module_that_has_it(monkeypatch, module, attribute, named):
    app, parts = made(), module.split(".")
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        part = ModuleType(name)
        part.__path__ = ["a package"]  # type: ignore[attr-defined]
        if name != "__main__":
            monkeypatch.setitem(sys.modules, name, part)
        if number > 1:
            monkeypatch.setattr(sys.modules[".".join(parts[: number - 1])], parts[number - 1], part, raising=False)
    if attribute:
        monkeypatch.setattr(sys.modules[module], "another", Celery("another", set_as_current=False), raising=False)
        monkeypatch.setattr(sys.modules[module], attribute, app, raising=False)
    assert command("apply", app) == f"celery -A {named} rmq-delay apply"


def test_a_text_without_an_app_names_the_only_one_of_the_process(monkeypatch):
    monkeypatch.setattr(commands, "_NAMES", type(commands._NAMES)())
    assert command("apply") == "celery -A proj rmq-delay apply", "no app has delay queues"
    first = made("first")
    assert command("apply") == "celery -A first rmq-delay apply"
    second = made("second")
    assert command("apply") == "celery -A proj rmq-delay apply", "it may be either of them"
    assert command("apply", second) == "celery -A second rmq-delay apply"
    assert command("apply", first) == "celery -A first rmq-delay apply"
    assert command("apply", made("__main__")) == "celery -A proj rmq-delay apply"
    assert command("apply", made(None)) == "celery -A proj rmq-delay apply"


def test_a_text_of_a_celery_command_repeats_its_option_a():
    app, other = made(), made("other")

    @click.command()
    @click.option("-A", "--app")
    @click.pass_context
    def celery(ctx, **_given):
        ctx.obj = CLIContext(app, no_color=True, workdir=None)
        with click.Context(rmq_delay, parent=ctx):
            assert command("plan") == "celery -A deep.in.shop rmq-delay plan"
            assert command("plan", app) == "celery -A deep.in.shop rmq-delay plan"
            assert command("plan", other) == "celery -A other rmq-delay plan"

    celery(["-A", "deep.in.shop"], standalone_mode=False)


def test_no_text_of_the_package_names_an_app_of_its_own():
    found = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        with_docstrings = [each for each in ast.walk(tree) if isinstance(each, nodes) and ast.get_docstring(each)]
        docstrings = {id(each.body[0].value) for each in with_docstrings}  # type: ignore[attr-defined]
        found += [
            f"{path.name}:{each.lineno}: {each.value}"
            for each in ast.walk(tree)
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in docstrings
            if "celery -A" in each.value and path != PACKAGE / "commands.py" and PACKAGE / "demo" not in path.parents
        ]
    assert found == []


WITHOUT_AN_APP = """
import sys
from celery.bin.celery import celery
from click.testing import CliRunner
for line in sys.stdin.read().splitlines():
    found = CliRunner().invoke(celery, ["rmq-delay", *line.split()])
    print(found.exit_code, " ".join(found.output.split()))
    helped = CliRunner().invoke(celery, ["rmq-delay", *line.split(), "--help"])
    assert helped.exit_code == 0, helped.output
"""
#: What a command needs to get as far as to its app.
COMPLETE = {
    "adopt": "--queue q",
    "capacity": "--rate 1/s --failure-rate 1%",
    "delete-queue": "q",
    "exhausted discard": "--all --yes",
    "exhausted requeue": "--all",
    "exhausted show": "3f1c",
    "migrate": "--from levels --to ladder",
    "release": "3f1c",
    "uninstall": "--yes",
}


def test_every_command_without_an_app_reports_that_option_a_is_missing():
    names = [name for name, _command in all_commands(rmq_delay)]
    assert len(names) == 16
    typed = "\n".join(f"{name} {COMPLETE.get(name, '')}".strip() for name in names)
    script = [sys.executable, "-c", WITHOUT_AN_APP]
    answers = subprocess.run(script, input=typed, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [
        f"1 Error: -A is missing: `celery -A proj rmq-delay {name}`, where proj is the module of your app."
        for name in names
    ] == answers
