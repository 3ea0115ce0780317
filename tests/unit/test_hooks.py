"""Private names of Celery and its libraries that the package uses: listed, checked, and handled if missing."""

import ast
from importlib.metadata import requires
from pathlib import Path

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from packaging.requirements import Requirement

import celery_rmq_delay
from celery_rmq_delay import RetryableTask
from celery_rmq_delay.worker import hooks
from celery_rmq_delay.worker.trace import LeanInfo
from tests.support import ROOT
from tests.support.corpus import corpus

PACKAGE = Path(str(celery_rmq_delay.__file__)).parent
#: The package's modules that run in workers and publishers.
MODULES = [path for path in PACKAGE.rglob("*.py") if not {"testing", "contrib", "analytics"} & set(path.parts)]
#: Private names of the package itself, of the standard library, and of modules that are used in tools only.
OWN = {"_asdict", "_fields", "_replace", "_queue"}


@pytest.fixture
def gone(monkeypatch):
    """A hook that the installed Celery does not have."""
    monkeypatch.setitem(hooks.HOOKS, "celery.worker.request:Request", ("_message", "_settled_by"))
    hooks.missing.cache_clear()
    yield "celery.worker.request:Request._settled_by"
    hooks.missing.cache_clear()


def private(path):
    """Yield the private attributes of other modules that a module uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            yield node.attr


def defined(path):
    """Yield the private names that a module defines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            yield node.attr if isinstance(node, ast.Attribute) else node.id
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_the_installed_versions_have_all_hooks():
    assert hooks.missing() == ()
    assert hooks.complaint() is None


def test_a_function_that_a_product_has_wrapped_without_its_parameters_lacks_none(monkeypatch):
    """As Sentry wraps `build_tracer`."""
    monkeypatch.setattr("celery.app.trace.build_tracer", lambda name, task, *args, **options: None)
    hooks.missing.cache_clear()
    try:
        assert hooks.missing() == ()
    finally:
        hooks.missing.cache_clear()


def test_the_oldest_versions_that_were_tried_are_those_that_the_package_asks_for():
    asked = {each.name: str(each.specifier) for each in map(Requirement, requires("celery-rmq-delay") or ())}
    for name, (first, _) in hooks.TRIED.items():
        assert asked[name] == f">={first.removesuffix('.0')}"
        assert f"celery55: {name}=={first}\n" in (ROOT / "tox.ini").read_text()


def test_every_private_name_that_is_used_is_a_hook():
    listed = {name for names in hooks.HOOKS.values() for name in names}
    own = {name for path in MODULES for name in defined(path)}
    unknown = {path.name: set(private(path)) - own - listed - OWN for path in MODULES}
    assert {name: found for name, found in unknown.items() if found} == {}


def test_every_hook_is_used():
    sources = "\n".join(path.read_text() for path in MODULES if path.name != "hooks.py")
    unused = [name for names in hooks.HOOKS.values() for name in names if name not in sources]
    assert unused == []


def test_missing_hooks_are_reported_with_the_versions_that_have_them(gone):
    assert hooks.missing() == (gone,)
    text = hooks.complaint()
    assert text is not None
    assert f"lack what this package needs: {gone}. Retries wait in the worker" in text
    assert "celery 5.5.0 to 5.7.0" in text


@corpus("where", ["celery.no_such_module", "celery:NoSuchClass"])
def test_a_module_or_class_that_is_gone_is_missing(monkeypatch, where):
    monkeypatch.setitem(hooks.HOOKS, where, ("name",))
    hooks.missing.cache_clear()
    assert hooks.missing() == (where,)
    monkeypatch.undo()
    hooks.missing.cache_clear()


@pytest.mark.usefixtures("gone")
def test_tasks_keep_celerys_own_record_of_failures_where_a_hook_is_missing():
    app = Celery("test", broker="memory://", set_as_current=False)

    @app.task(base=RetryableTask, name="t", shared=False)
    def t(): ...

    t.__trace__ = build_tracer("t", t, app=app)
    cells = dict(zip(t.__trace__.__code__.co_freevars, t.__trace__.__closure__, strict=True))
    assert cells["Info"].cell_contents is not LeanInfo
