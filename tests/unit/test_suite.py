"""The files of the test suite: places of helpers, imports of test modules, lengths of test names."""

import ast

from tests.support import ROOT

FOLDERS = ("tests", "chaos/tests", "benchmarks/tests")
FILES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MODULES = [path for path in FILES if "support" not in path.parts]
LONGEST = 90


def parsed(path):
    return ast.parse((ROOT / path).read_text())


def imported(path):
    """Return the parts of the names that a file imports."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *(each.name for each in node.names)]
            found |= {part for name in names for part in name.split(".")}
    return found


def test_no_file_imports_tests_or_fixtures():
    private = {path.stem for path in MODULES if path.name.startswith("test_")} | {"conftest"}
    wrong = {str(path): found for path in FILES if (found := private & imported(path))}
    assert wrong == {}


def test_shared_helpers_are_in_the_support_folder():
    others = [path for path in MODULES if not path.name.startswith(("test_", "conftest", "__init__"))]
    assert others == []


def test_names_of_tests_are_short():
    names = [node.name for path in MODULES for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef)]
    assert [name for name in names if name.startswith("test_") and len(name) > LONGEST] == []


def test_one_process_has_all_files_that_use_the_broker_with_the_management_api(pytestconfig):
    together = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py")).TOGETHER["managed"]
    fixtures = {"managed", "managed_lab", "managed_vhost"}
    using = {
        str(path)
        for path in MODULES
        for node in ast.walk(parsed(path))
        if path.name.startswith("test_") and isinstance(node, ast.arg) and node.arg in fixtures
    }
    assert using == set(together)


def test_the_quick_suite_stays_below_its_ceiling(request):
    quick = [item for item in request.session.items if not item.get_closest_marker("slow")]
    assert len(quick) <= int(request.config.getini("quick_tests")), "decide which tests become slow"
