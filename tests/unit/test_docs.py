"""The documentation agrees with the code."""

from __future__ import annotations

import ast
import dataclasses
import pydoc
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

import celery_rmq_delay
from celery_rmq_delay import durations, exceptions, headers, signals, task, testing
from celery_rmq_delay.app.state import NEEDED
from celery_rmq_delay.cli import main as cli
from celery_rmq_delay.cli.text import status_text
from celery_rmq_delay.contrib.django.conf import Conf, Notify
from celery_rmq_delay.events import schema as events
from celery_rmq_delay.names import Names
from celery_rmq_delay.operations.exhausted import REASONS
from celery_rmq_delay.operations.status import ExactStatus, Status
from celery_rmq_delay.redaction import keys
from celery_rmq_delay.settings import parser as config
from celery_rmq_delay.testing import plugin
from celery_rmq_delay.topology.exact import registry
from celery_rmq_delay.topology.exact.base import Options
from tests.support import ROOT
from tests.support.corpus import corpus
from tests.support.snippets import Snippet, append, pages, snippets, start_project, write
from tests.support.waiting import SECONDS

SETTINGS = (ROOT / "docs/reference/settings.md").read_text()
QUICKSTART = ROOT / "docs/start/quickstart.md"

PYTHON = [snippet for page in pages() for snippet in snippets(page) if snippet.language == "python"]


@corpus("snippet", PYTHON)
def test_python_in_the_docs_compiles(snippet: Snippet) -> None:
    compile(snippet.code, str(snippet), "exec")


SETTING = tuple(f"{name} {sign} " for name in ("CELERY_RMQ_DELAY", "app.conf.rmq_delay") for sign in ("=", "|="))


def settings_in(snippet: Snippet) -> list[object]:
    """Return the values of ``CELERY_RMQ_DELAY`` or ``app.conf.rmq_delay`` in a snippet."""
    return [
        eval(compile(ast.Expression(node.value), str(snippet), "eval"), {"timedelta": timedelta})
        for node in ast.walk(ast.parse(snippet.code))
        if isinstance(node, ast.Assign | ast.AugAssign) and ast.unparse(node).startswith(SETTING)
    ]


CONFIGURED = [snippet for snippet in PYTHON if settings_in(snippet)]


@corpus("snippet", CONFIGURED)
def test_settings_in_the_docs_are_valid(snippet: Snippet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._FACTORIES, "steps", registry._FACTORIES["levels"])  # a page registers a custom one
    for raw in settings_in(snippet):
        config.parse_settings(raw)


def test_pages_that_a_reader_follows_in_turn_add_to_the_settings_of_the_earlier_ones() -> None:
    names: dict[str, Any] = {"INSTALLED_APPS": [], "DATABASES": {"default": {}}}
    earlier = ["start/quickstart.md", "admin/first-steps.md"]
    later = ["admin/retention.md", "admin/redaction.md", "operate/alerts.md", "operate/keep-history.md"]
    for page in [*earlier, *later, "start/exact-delays.md"]:
        found = snippets(ROOT / "docs" / page)
        shown = [each for each in found if re.search(r"^(CELERY_)?RMQ_DELAY ", each.code, re.MULTILINE)]
        assert shown
        for each in shown:
            exec(compile(each.code, str(each), "exec"), names)
    assert {"CELERY_APP", "KEEP_HISTORY_DAYS", "NOTIFY", "HISTORY_URL"} <= names["RMQ_DELAY"].keys()
    of_celery = names["CELERY_RMQ_DELAY"].keys()
    assert {"tiers", "queues", "redact", "exact_unit", "exact_for", "apply_on_start"} <= of_celery


def test_the_readme_and_the_quickstart_show_settings() -> None:
    assert {"README.md", "docs/start/quickstart.md"} <= {snippet.page for snippet in CONFIGURED}


def run(folder: Path, code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@corpus("page", [ROOT / "README.md", QUICKSTART])
def test_the_example_without_django_can_be_imported(page: Path, tmp_path: Path) -> None:
    write(page, tmp_path, "shop.py")
    output = run(
        tmp_path,
        "import shop; from celery_rmq_delay import RetryableTask\n"
        "shop.app.finalize()\n"
        "assert isinstance(shop.charge, RetryableTask)\n"
        "print(sorted(shop.app.amqp.queues['celery'].queue_arguments))",
    )
    assert "x-dead-letter-exchange" in output


def test_the_example_with_django_can_be_imported(tmp_path: Path) -> None:
    pytest.importorskip("django")
    start_project(tmp_path)
    write(QUICKSTART, tmp_path, "proj/celery.py", "proj/__init__.py", "payments/tasks.py")
    append(QUICKSTART, tmp_path, "proj/settings.py")
    output = run(
        tmp_path,
        "import proj, django; django.setup()\n"
        "from celery_rmq_delay.app.state import state_of\n"
        "proj.celery_app.loader.import_default_modules(); proj.celery_app.finalize()\n"
        "delay = state_of(proj.celery_app); tasks = proj.celery_app.tasks\n"
        "for queue, name in [('payments', 'payments.tasks.charge'), ('celery', 'payments.tasks.ping')]:\n"
        "    print(delay.ladder(queue, tasks[name]).tiers_ms)",
    )
    assert output.split("\n") == ["(5000, 30000, 300000)", "(1000, 2000, 4000)", ""]


def documented_settings() -> dict[str, str]:
    """Return the section of every documented key."""
    parts = re.split(r"^### `(\w+)`\n", SETTINGS.split("\n## Checks of tasks")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_setting_is_documented_and_no_other() -> None:
    assert sorted(documented_settings()) == sorted(config._TOP_KEYS)


def test_the_docs_list_the_settings_that_a_queue_can_have() -> None:
    per_queue = {key for key, text in documented_settings().items() if "Per queue: yes." in text}
    assert per_queue == set(config._QUEUE_KEYS)


def test_the_documented_defaults_are_the_defaults() -> None:
    settings = config.parse_settings({})
    default = settings.default
    actual = {
        "tiers": config.DEFAULT_TIERS,
        "jitter": default.ladder.jitter,
        "repeat_last": default.ladder.repeat_last,
        "queue_type": default.queue_type,
        "max_crashes": default.max_crashes,
        "exact_delays": settings.exact.topologies[0],
        "exact_unit": durations.format_ms(settings.exact.unit_ms),
        "exact_levels": settings.exact.levels,
        "exact_queue_type": settings.exact.queue_type,
        "exact_for": "all" if settings.exact.every_task else "retryable",
        "retry": default.retry,
        "events": settings.events.wanted,
        "events_max_length": settings.events.max_length,
        "redact": {},
    }
    plain = set(config._TOP_KEYS) - set(actual)
    actual |= {key: getattr(settings, key) for key in plain}
    documented = {}
    for key, text in documented_settings().items():
        found = re.search(r"^Default: `(.*?)`\.", text, re.MULTILINE)
        assert found is not None, f"{key} has no default in the reference"
        documented[key] = ast.literal_eval(found.group(1))
    assert documented == actual


WRONG = {
    "tiers": [[], "10s", ["0s"], ["4000d"], ["10"]],
    "jitter": [1, -0.1, "a"],
    "repeat_last": ["yes"],
    "queue_type": ["stream"],
    "max_crashes": [-1, 1001],
    "retry": ["fast", "native", None],
    "queues": [[], {"q": 1}, {"q": {"lanes": 2}}, {"q" * 255: {}}, {"q.quarantine": {}}, {"rmq_delay.exhausted": {}}],
    "prefix": [""],
    "lanes": [0, 65],
    "exhausted_queue": ["", "q" * 256],
    "apply_on_start": [None],
    "strict": [1],
    "events": ["on"],
    "events_max_length": [999, 10**9 + 1, True],
    "redact": [[], {"keys": "password"}, {"keys": [""]}, {"hook": "redact"}, {"values": []}],
    "exact_delays": [[], 1, "rings"],
    "exact_unit": ["99ms", "2m", 0],
    "exact_levels": [0, 29, True],
    "exact_queue_type": ["stream"],
    "exact_for": ["none"],
    "management_url": ["rabbit:15672", "ftp://rabbit", 15672],
}


def hint_of(key: str, value: object) -> str:
    """Return the hint of the error that a wrong value raises."""
    with pytest.raises(celery_rmq_delay.SettingsError) as raised:
        config.parse_settings({key: value})
    return raised.value.hint


@corpus("key, value", [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_value_is_an_error_with_a_hint(key: str, value: object) -> None:
    assert len(hint_of(key, value)) > 11


def test_the_documented_hints_are_those_of_errors() -> None:
    hints = [hint_of(key, value) for key, values in WRONG.items() for value in values]
    rows = re.findall(r"^\| `(.+?)` \|", SETTINGS.split("\n## Hints of errors\n")[1].split("\n## ")[0], re.MULTILINE)
    assert rows
    for row in rows:
        phrases = [phrase for piece in re.split(r"\.\.\.|\bN\b", row) if len(phrase := piece.strip(" .")) > 11]
        assert phrases
        assert any(all(phrase in hint for phrase in phrases) for hint in hints), row


def test_every_setting_of_the_django_side_is_documented_with_its_default_and_no_other() -> None:
    section = Path("docs/reference/admin.md").read_text().split("## Settings")[1].split("\n## ")[0]
    documented = dict(re.findall(r"^\| `([A-Z_]+)` \| `(.+?)` \|", section, re.MULTILINE))
    defaults = {
        each.name.upper(): {} if each.default == Notify() else each.default for each in dataclasses.fields(Conf)
    }
    assert {name: ast.literal_eval(value) for name, value in documented.items()} == defaults


def test_every_header_is_documented_and_no_other() -> None:
    written = {value for name, value in vars(headers).items() if name.isupper() and isinstance(value, str)}
    text = (ROOT / "docs/reference/headers.md").read_text()
    assert set(re.findall(r"^\| `(rmq-delay-[\w-]+)`", text, re.MULTILINE)) == {
        value for value in written if value.startswith(headers.PREFIX) and value != headers.PREFIX
    }


def test_every_reason_by_which_exhausted_tasks_are_selected_is_documented_and_no_other() -> None:
    text = (ROOT / "docs/reference/headers.md").read_text().split("## Why it is there")[1].split("\n## ")[0]
    assert {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)} == {*REASONS}


def test_every_signal_is_documented_with_its_arguments() -> None:
    text = (ROOT / "docs/reference/signals.md").read_text()
    rows = re.findall(r"^\| `(task_\w+)` \| (.*?) \|", text, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", arguments)) for name, arguments in rows}
    assert documented == {
        name: set(value.providing_args) for name, value in vars(signals).items() if name.startswith("task_")
    }


def commands(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """Return every command by its words."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        words = f"{prefix}{name}"
        found |= commands(command, f"{words} ") if isinstance(command, click.Group) else {words: command}
    return found


def test_every_command_is_documented_and_no_other() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text().split("## Options")[0]
    assert set(re.findall(r"^\| `([\w -]+)` \|", text, re.MULTILINE)) == set(commands(cli.rmq_delay))


def test_every_option_of_the_commands_is_documented_and_no_other() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text().split("## Options")[1].split("\n## ")[0]
    documented = {option for row in text.splitlines() for option in re.findall(r"`(--[\w-]+)", row.partition(" | ")[0])}
    options = {
        option for command in commands(cli.rmq_delay).values() for param in command.params for option in param.opts
    }
    assert documented == {option for option in options if option.startswith("--")} - {"--help"}


def test_the_findings_of_doctor_are_documented() -> None:
    operations = ROOT / "celery_rmq_delay/operations"
    source = "".join(path.read_text() for path in operations.rglob("*.py"))
    codes = set(re.findall(r'Finding\(\s*"([\w-]+)",\s+(?:"(?:error|warning|note)"|severity)', source))
    text = (ROOT / "docs/reference/cli.md").read_text().split("## What `doctor` finds")[1].split("\n## ")[0]
    found = re.findall(r"^- (`.+?): ", text, re.MULTILINE)
    assert {code for names in found for code in re.findall(r"`([\w-]+)`", names)} == codes


def test_every_fixture_and_option_for_tests_is_documented() -> None:
    text = (ROOT / "docs/reference/testing.md").read_text()
    source = Path(plugin.__file__).read_text()
    wanted = set(re.findall(r"^def (rmq_\w+)\(", source, re.MULTILINE)) | set(
        re.findall(r'addoption\(\s*"(--[\w-]+)"', source)
    )
    assert len(wanted) > 4
    assert {name for name in wanted | set(testing.__all__) if f"`{name}" not in text} == set()


def test_every_attribute_of_a_retryable_task_is_documented() -> None:
    text = (ROOT / "docs/reference/task.md").read_text()
    ours = {"tiers", "autoretry_for", "give_up_on", "max_retries", *(name for name, *_ in NEEDED)}
    assert ours <= set(vars(task.RetryableTask))
    assert {name for name in ours if f"`{name}`" not in text.partition("## Attributes")[2]} == set()


def test_every_public_name_is_in_the_docs() -> None:
    everything = "\n".join(page.read_text() for page in pages())
    assert [name for name in celery_rmq_delay.__all__ if name not in everything and name != "RmqDelayError"] == []


API = (ROOT / "docs/reference/api.md").read_text()


@corpus("path", re.findall(r"^::: ([\w.]+)", API, re.MULTILINE))
def test_every_name_of_the_api_reference_exists_and_has_a_docstring(path: str) -> None:
    assert pydoc.getdoc(pydoc.locate(path))  # type: ignore[no-untyped-call]


def test_the_api_reference_has_every_public_name_of_the_package() -> None:
    modules = {"celery_rmq_delay.exceptions", "celery_rmq_delay.signals"}
    assert modules <= set(re.findall(r"^::: ([\w.]+)", API, re.MULTILINE))
    theirs = {*vars(exceptions), *signals.__all__}
    assert [
        name for name in celery_rmq_delay.__all__ if name not in theirs and f"::: celery_rmq_delay.{name}\n" not in API
    ] == []


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_imports_of_every_example_are_in_the_order_of_ruff(tmp_path: Path) -> None:
    """In a project of its own, where this package is one of others; with ruff's defaults, and with longer lines."""
    for number, snippet in enumerate(PYTHON):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "example.py").write_text(f"{snippet.code}\n# {snippet}\n")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "I"]
    for more in ([], ["--line-length", "120"]):
        done = subprocess.run([*command, *more, "."], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
        wrong = [str(PYTHON[int(number)]) for number in re.findall(r"(\d+)/example.py", done.stdout)]
        assert (done.returncode, wrong) == (0, []), done.stdout + done.stderr


#: How pip gets this package from a package index.
PUBLISHED = re.compile(r"pip install .*?\bcelery-rmq-delay\b(?! @ )")


@corpus("page", pages())
def test_every_page_installs_the_checkout_before_it_names_the_package_index(page: Path) -> None:
    text = re.sub(r"^( *)```text.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # messages
    found = PUBLISHED.search(text)
    before = text[: found.start()] if found else ""
    assert not found or re.search(r"pip install (--upgrade )?'?\.", before) or "checkout" in before, found


@corpus("page", pages())
def test_links_between_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    assert [name for name, _ in targets if not (page.parent / name).exists()] == []
    sections = [(name, anchor) for name, anchor in targets if anchor and (name or page.name).endswith(".md")]
    assert [found for found in sections if found[1] not in anchors(page.parent / found[0] if found[0] else page)] == []


def anchors(page: Path) -> set[str]:
    """Return the link targets of a page: its headings as GitHub and MkDocs make them, and its own ids."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
    return slugs | set(re.findall(r'(?:id="|\{#)([\w.-]+)', text))


def test_the_documentation_keeps_to_its_structure() -> None:
    """Five groups of at most 35 pages for users, a reference, and at most 8 explanations; each page is in one."""
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    found = re.findall(r"^  - (\w[\w ]*):\n((?:      - .*\n)+)", nav, re.MULTILINE)
    groups = {name: re.findall(r"- ([\w/-]+\.md)$", text, re.MULTILINE) for name, text in found}
    users = ["Start", "Migrate", "Operate", "Django admin", "Test"]
    assert [*groups] == [*users, "Reference", "Explanation", "Contributing"]
    assert sum(len(groups[name]) for name in users) <= 35
    assert len(groups["Explanation"]) <= 8
    listed = sorted(page for group in groups.values() for page in group)
    assert listed == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_the_compatibility_page_names_tests_that_exist_and_all_of_its_folder() -> None:
    text = (ROOT / "docs/reference/compatibility.md").read_text()
    rows = re.findall(r"^\|.*\| `(tests/[\w/]+\.py)` \|$", text, re.MULTILINE)
    assert [path for path in rows if not (ROOT / path).exists()] == []
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/compatibility/test_*.py")} <= {*rows}


def test_every_diagram_and_chart_was_made_from_its_source() -> None:
    assets, results = ROOT / "docs/assets", ROOT / "benchmarks/results"
    sources = [*assets.glob("*.mmd"), *results.glob("*.json")]
    assert sorted(path.stem for path in sources) == sorted(path.stem for path in assets.glob("*.svg"))


EXACT_PAGE = ROOT / "docs/explanation/exact-delays.md"
UNITS = {"unit 100 ms": 100, "Unit 1 s": 1000, "Unit 1 min": 60_000}


def topology_tables() -> list[dict[str, list[str]]]:
    """Return the tables whose rows are topologies: the cells of a row by the topology's name."""
    text = EXACT_PAGE.read_text()
    found = re.findall(r"^\| Topology \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    tables = [[[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()] for rows in found]
    return [{name.strip("`"): cells for name, *cells in table} for table in tables]


def test_every_topology_is_documented_and_no_other() -> None:
    mechanisms, limits = topology_tables()
    assert tuple(mechanisms) == tuple(limits) == registry.known()
    text = EXACT_PAGE.read_text()
    assert [name for name in registry.known() if f"\n### `{name}`\n" not in text] == []


def test_the_documented_limits_of_the_topologies_are_theirs() -> None:
    _, limits = topology_tables()
    for name, (_, *longest) in limits.items():
        made = [registry.make(name, exact_options(unit)) for unit in UNITS.values()]
        assert longest == [f"{topology.max_ms / 86_400_000:,.1f} days" for topology in made], name


def exact_options(unit_ms: int) -> Options:
    return Options(names=Names("rmq_delay"), exhausted="rmq_delay.exhausted", unit_ms=unit_ms)


def test_the_objects_of_exact_delays_are_documented() -> None:
    text = (ROOT / "docs/reference/broker-objects.md").read_text().split("## Exact delays")[1].split("\n## ")[0]
    documented = set(re.findall(r"`(rmq_delay\.[\w.<>]+)`", text))
    actual = set()
    for name in registry.known():
        route = registry.make(name, exact_options(1000)).route(1000, "Q")
        objects = (*route.objects.exchanges, *route.objects.queues, *route.leased)
        actual |= {re.sub(r"hold\.1s\.Q$", "hold.<delay>.<queue>", each.name) for each in objects}
    quorum = registry.make("levels", dataclasses.replace(exact_options(1000), queue_type="quorum"))
    actual |= {each.name.removesuffix("Q") + "<queue>" for each in quorum.arrival("Q").queues}
    assert documented == {re.sub(r"(classic)\.\d+$", r"\1.<n>", name) for name in actual}


def test_the_page_shows_the_line_of_status_about_exact_delays() -> None:
    page = (ROOT / "docs/start/exact-delays.md").read_text()
    exact_status = (ExactStatus("levels", 1000, 3), ExactStatus("hold", 1000, None))
    levels, hold = status_text(Status((), "rmq_delay.exhausted", 0, exact_status)).splitlines()[-2:]
    assert f"\n{levels}\n" in page
    assert f"`{hold.partition(': ')[2]}`" in page


def test_every_error_of_a_call_is_documented() -> None:
    text = (ROOT / "docs/reference/task.md").read_text()
    raised = {exceptions.DelayError, exceptions.TopologyError, *exceptions.PublishError.__subclasses__()}
    assert set(re.findall(r"^\| `(\w+Error)`", text, re.MULTILINE)) == {kind.__name__ for kind in raised}


def test_every_field_and_kind_of_an_event_is_documented_and_no_other() -> None:
    text = (ROOT / "docs/reference/events.md").read_text()
    kinds, fields = (text.split(f"## {title}\n")[1].split("\n## ")[0] for title in ("Kinds", "Fields"))
    rows = [row.split(" | ")[0] for row in fields.splitlines()]
    assert {
        name for row in rows for name in re.findall(r"^\| (`.*)", row) for name in re.findall(r"`(\w+)`", name)
    } == {field.name for field in dataclasses.fields(events.Event)}
    assert tuple(re.findall(r"^\| `(\w+)` \|", kinds, re.MULTILINE))[1:] == events.KINDS


def test_the_keys_that_are_always_redacted_are_documented() -> None:
    text = (ROOT / "docs/reference/events.md").read_text().split("## Redaction\n")[1].split(", or of the setting")[0]
    assert tuple(re.findall(r"`(\w+)`,?\s*", text.split("one of ")[1])) == keys.DEFAULT_KEYS
    whole = (ROOT / "docs/reference/events.md").read_text().split("every key with ")[1].split(" as a whole word")[0]
    assert tuple(re.findall(r"`(\w+)`", whole)) == keys.WHOLE_KEYS
