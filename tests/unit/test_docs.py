"""The documentation agrees with the code."""

import ast
import dataclasses
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

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
from celery_rmq_delay.redaction import keys as redaction
from celery_rmq_delay.settings import parser as config
from celery_rmq_delay.testing import plugin
from celery_rmq_delay.topology.exact import registry
from celery_rmq_delay.topology.exact.base import Options
from tests.support import ROOT, command_table
from tests.support.corpus import corpus
from tests.support.snippets import append, pages, snippets, start_project, write
from tests.support.waiting import SECONDS


def text(page, heading=""):
    """Return a page of the documentation, or its part under a heading of the second level."""
    whole = (ROOT / "docs" / page).read_text()
    return whole.split(f"\n## {heading}\n")[1].split("\n## ")[0] if heading else whole


def found(pattern, page, heading=""):
    """Return what a pattern matches in the lines of a page."""
    return {*re.findall(pattern, text(page, heading), re.MULTILINE)}


SETTINGS = text("reference/settings.md")
QUICKSTART = ROOT / "docs/start/quickstart.md"

PYTHON = [snippet for page in pages() for snippet in snippets(page) if snippet.language == "python"]


@corpus("snippet", PYTHON)
def test_python_in_the_docs_compiles(snippet):
    compile(snippet.code, str(snippet), "exec")


SETTING = tuple(f"{name} {sign} " for name in ("CELERY_RMQ_DELAY", "app.conf.rmq_delay") for sign in ("=", "|="))


def settings_in(snippet):
    """Return the values of ``CELERY_RMQ_DELAY`` or ``app.conf.rmq_delay`` in a snippet."""
    return [
        eval(compile(ast.Expression(node.value), str(snippet), "eval"), {"timedelta": timedelta})
        for node in ast.walk(ast.parse(snippet.code))
        if isinstance(node, ast.Assign | ast.AugAssign) and ast.unparse(node).startswith(SETTING)
    ]


CONFIGURED = [snippet for snippet in PYTHON if settings_in(snippet)]
assert {"README.md", "docs/start/quickstart.md"} <= {snippet.page for snippet in CONFIGURED}


@corpus("snippet", CONFIGURED)
def test_settings_in_the_docs_are_valid(snippet, monkeypatch):
    monkeypatch.setitem(registry._FACTORIES, "steps", registry._FACTORIES["levels"])  # a page registers a custom one
    for raw in settings_in(snippet):
        config.parse_settings(raw)


def test_pages_that_a_reader_follows_in_turn_add_to_the_settings_of_the_earlier_ones():
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


def run(folder, code):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@corpus("page", [ROOT / "README.md", QUICKSTART])
def test_the_example_without_django_can_be_imported(page, tmp_path):
    write(page, tmp_path, "shop.py")
    output = run(
        tmp_path,
        "import shop; from celery_rmq_delay import RetryableTask\n"
        "shop.app.finalize()\n"
        "assert isinstance(shop.charge, RetryableTask)\n"
        "print(sorted(shop.app.amqp.queues['celery'].queue_arguments))",
    )
    assert "x-dead-letter-exchange" in output


def test_the_example_with_django_can_be_imported(tmp_path):
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


def documented_settings():
    """Return the section of every documented key."""
    parts = re.split(r"^### `(\w+)`\n", SETTINGS.split("\n## Checks of tasks")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_documented_defaults_are_the_defaults():
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
    for key, about in documented_settings().items():
        default = re.search(r"^Default: `(.*?)`\.", about, re.MULTILINE)
        assert default is not None, f"{key} has no default in the reference"
        documented[key] = ast.literal_eval(default.group(1))
    assert documented == actual


CLI, EVENTS, HEADERS = "reference/cli.md", "reference/events.md", "reference/headers.md"
COMMANDS = dict(command_table.commands(cli.rmq_delay))
SOURCE_OF_OPERATIONS = "".join(path.read_text() for path in (ROOT / "celery_rmq_delay/operations").rglob("*.py"))


def words(rows, pattern=r"`(\w+)`"):
    """Return what a pattern matches in the first cells, or texts, of rows."""
    return {word for row in rows for word in re.findall(pattern, row.partition(" | ")[0])}


#: What the documentation names, and what the code has.
NAMES: dict[str, tuple[set[str], Iterable[str]]] = {
    "settings": ({*documented_settings()}, config._TOP_KEYS),
    "settings of a queue": (
        {key for key, about in documented_settings().items() if "Per queue: yes." in about},
        config._QUEUE_KEYS,
    ),
    "headers": (
        found(r"^\| `(rmq-delay-[\w-]+)`", HEADERS),
        (each for name, each in vars(headers).items() if name.isupper() and str(each)[:-1].startswith(headers.PREFIX)),
    ),
    "reasons of exhausted tasks": (found(r"^\| `(\w+)` \|", HEADERS, "Why it is there"), REASONS),
    "commands": ({*re.findall(r"^\| `([\w -]+)` \|", text(CLI).split("\n## Options\n")[0], re.MULTILINE)}, COMMANDS),
    "options": (
        words(text(CLI, "Options").splitlines(), r"`(--[\w-]+)"),
        (name for each in COMMANDS.values() for param in each.params for name in param.opts if name[:2] == "--"),
    ),
    "findings of doctor": (
        words(found(r"^- (`.+?): ", CLI, "What `doctor` finds"), r"`([\w-]+)`"),
        re.findall(r'Finding\(\s*"([\w-]+)",\s+(?:"(?:error|warning|note)"|severity)', SOURCE_OF_OPERATIONS),
    ),
    "errors of a call": (
        found(r"^\| `(\w+Error)`", "reference/task.md"),
        (
            kind.__name__
            for kind in (exceptions.DelayError, exceptions.TopologyError, *exceptions.PublishError.__subclasses__())
        ),
    ),
    "fields of events": (
        words(row for row in text(EVENTS, "Fields").splitlines() if row.startswith("| `")),
        (field.name for field in dataclasses.fields(events.Event)),
    ),
}


@corpus("what", NAMES)
def test_every_name_is_documented_and_no_other(what):
    documented, real = NAMES[what]
    assert documented == {*real} - {"--help"}


def test_every_signal_is_documented_with_its_arguments():
    rows = found(r"^\| `(task_\w+)` \| (.*?) \|", "reference/signals.md")
    assert {name: words([arguments]) for name, arguments in rows} == {
        name: set(value.providing_args) for name, value in vars(signals).items() if name.startswith("task_")
    }


def test_every_public_name_is_in_the_docs():
    everything = "\n".join(page.read_text() for page in pages())
    assert [name for name in celery_rmq_delay.__all__ if name not in everything and name != "RmqDelayError"] == []


def test_the_kinds_of_events_and_the_keys_that_are_redacted_are_documented_in_their_order():
    kinds = re.findall(r"^\| `(\w+)` \|", text(EVENTS, "Kinds"), re.MULTILINE)
    assert tuple(kinds[1:]) == events.KINDS
    about = text(EVENTS)
    for start, end, keys in (
        ("one of ", ", or of the setting", redaction.DEFAULT_KEYS),
        ("every key with ", " as a whole word", redaction.WHOLE_KEYS),
    ):
        assert tuple(re.findall(r"`(\w+)`", about.split("\n## Redaction\n")[1].split(start)[1].split(end)[0])) == keys


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


def hint_of(key, value):
    """Return the hint of the error that a wrong value raises."""
    with pytest.raises(celery_rmq_delay.SettingsError) as raised:
        config.parse_settings({key: value})
    return raised.value.hint


@corpus("key, value", [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_value_is_an_error_with_a_hint(key, value):
    assert len(hint_of(key, value)) > 11


def test_the_documented_hints_are_those_of_errors():
    hints = [hint_of(key, value) for key, values in WRONG.items() for value in values]
    rows = found(r"^\| `(.+?)` \|", "reference/settings.md", "Hints of errors")
    assert rows
    for row in rows:
        phrases = [phrase for piece in re.split(r"\.\.\.|\bN\b", row) if len(phrase := piece.strip(" .")) > 11]
        assert phrases
        assert any(all(phrase in hint for phrase in phrases) for hint in hints), row


def test_every_setting_of_the_django_side_is_documented_with_its_default_and_no_other():
    documented = dict(found(r"^\| `([A-Z_]+)` \| `(.+?)` \|", "reference/admin.md", "Settings"))
    defaults = {
        each.name.upper(): {} if each.default == Notify() else each.default for each in dataclasses.fields(Conf)
    }
    assert {name: ast.literal_eval(value) for name, value in documented.items()} == defaults


def test_every_fixture_and_option_for_tests_is_documented():
    about = text("reference/testing.md")
    source = Path(plugin.__file__).read_text()
    wanted = set(re.findall(r"^def (rmq_\w+)\(", source, re.MULTILINE)) | set(
        re.findall(r'addoption\(\s*"(--[\w-]+)"', source)
    )
    assert len(wanted) > 4
    assert {name for name in wanted | set(testing.__all__) if f"`{name}" not in about} == set()


def test_every_attribute_of_a_retryable_task_is_documented():
    about = text("reference/task.md").partition("## Attributes")[2]
    ours = {"tiers", "autoretry_for", "give_up_on", "max_retries", *(name for name, *_ in NEEDED)}
    assert ours <= set(vars(task.RetryableTask))
    assert {name for name in ours if f"`{name}`" not in about} == set()


API = text("reference/api.md")


@corpus("path", re.findall(r"^::: ([\w.]+)", API, re.MULTILINE))
def test_every_name_of_the_api_reference_exists_and_has_a_docstring(path):
    assert pydoc.getdoc(pydoc.locate(path))


def test_the_api_reference_has_every_public_name_of_the_package():
    modules = {"celery_rmq_delay.exceptions", "celery_rmq_delay.signals"}
    assert modules <= set(re.findall(r"^::: ([\w.]+)", API, re.MULTILINE))
    theirs = {*vars(exceptions), *signals.__all__}
    assert [
        name for name in celery_rmq_delay.__all__ if name not in theirs and f"::: celery_rmq_delay.{name}\n" not in API
    ] == []


def test_the_readme_has_at_most_120_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_imports_of_every_example_are_in_the_order_of_ruff(tmp_path):
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
def test_every_page_installs_the_checkout_before_it_names_the_package_index(page):
    text = re.sub(r"^( *)```text.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # messages
    found = PUBLISHED.search(text)
    before = text[: found.start()] if found else ""
    assert not found or re.search(r"pip install (--upgrade )?'?\.", before) or "checkout" in before, found


@corpus("page", pages())
def test_links_between_files_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
    assert [name for name, _ in targets if not (page.parent / name).exists()] == []
    sections = [(name, anchor) for name, anchor in targets if anchor and (name or page.name).endswith(".md")]
    assert [found for found in sections if found[1] not in anchors(page.parent / found[0] if found[0] else page)] == []


def anchors(page):
    """Return the link targets of a page: its headings as GitHub and MkDocs make them, and its own ids."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", found) for found in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
    return slugs | set(re.findall(r'(?:id="|\{#)([\w.-]+)', text))


def test_the_documentation_keeps_to_its_structure():
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


def test_the_compatibility_page_names_tests_that_exist_and_all_of_its_folder():
    rows = found(r"^\|.*\| `(tests/[\w/]+\.py)` \|$", "reference/compatibility.md")
    assert [path for path in rows if not (ROOT / path).exists()] == []
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/compatibility/test_*.py")} <= rows


def test_every_diagram_and_chart_was_made_from_its_source():
    assets, results = ROOT / "docs/assets", ROOT / "benchmarks/results"
    sources = [*assets.glob("*.mmd"), *results.glob("*.json")]
    assert sorted(path.stem for path in sources) == sorted(path.stem for path in assets.glob("*.svg"))


EXACT_PAGE = text("explanation/exact-delays.md")
UNITS = {"unit 100 ms": 100, "Unit 1 s": 1000, "Unit 1 min": 60_000}


def topology_tables():
    """Return the tables whose rows are topologies: the cells of a row by the topology's name."""
    every = re.findall(r"^\| Topology \|.*\n\|[-|]+\n((?:\|.*\n)+)", EXACT_PAGE, re.MULTILINE)
    tables = [[[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows.splitlines()] for rows in every]
    return [{name.strip("`"): cells for name, *cells in table} for table in tables]


def test_every_topology_is_documented_and_no_other():
    mechanisms, limits = topology_tables()
    assert tuple(mechanisms) == tuple(limits) == registry.known()
    assert [name for name in registry.known() if f"\n### `{name}`\n" not in EXACT_PAGE] == []


def test_the_documented_limits_of_the_topologies_are_theirs():
    _, limits = topology_tables()
    for name, (_, *longest) in limits.items():
        made = [registry.make(name, exact_options(unit)) for unit in UNITS.values()]
        assert longest == [f"{topology.max_ms / 86_400_000:,.1f} days" for topology in made], name


def exact_options(unit_ms):
    return Options(names=Names("rmq_delay"), exhausted="rmq_delay.exhausted", unit_ms=unit_ms)


def test_the_objects_of_exact_delays_are_documented():
    documented = found(r"`(rmq_delay\.[\w.<>]+)`", "reference/broker-objects.md", "Exact delays")
    actual = set()
    for name in registry.known():
        route = registry.make(name, exact_options(1000)).route(1000, "Q")
        objects = (*route.objects.exchanges, *route.objects.queues, *route.leased)
        actual |= {re.sub(r"hold\.1s\.Q$", "hold.<delay>.<queue>", each.name) for each in objects}
    quorum = registry.make("levels", dataclasses.replace(exact_options(1000), queue_type="quorum"))
    actual |= {each.name.removesuffix("Q") + "<queue>" for each in quorum.arrival("Q").queues}
    assert documented == {re.sub(r"(classic)\.\d+$", r"\1.<n>", name) for name in actual}


def test_the_page_shows_the_line_of_status_about_exact_delays():
    page = text("start/exact-delays.md")
    exact_status = (ExactStatus("levels", 1000, 3), ExactStatus("hold", 1000, None))
    levels, hold = status_text(Status((), "rmq_delay.exhausted", 0, exact_status)).splitlines()[-2:]
    assert f"\n{levels}\n" in page
    assert f"`{hold.partition(': ')[2]}`" in page
