"""What a version of Python, Django or Celery can break at once: imports, checks and migrations of the wheel."""

import pytest

from tests.support import ROOT
from tests.support.packaging.bare import install, installed_extras

pytestmark = pytest.mark.versions

#: Imports every module but those that act when they are imported. Without Spark, those that need it end at its name.
IMPORTS = """
import importlib, pkgutil, sys
import django
import celery_rmq_delay

assert celery_rmq_delay.__file__.startswith(sys.prefix), celery_rmq_delay.__file__
django.setup()
has_spark = importlib.util.find_spec("pyspark") is not None
names, missing = ["celery_rmq_delay"], []
for name in names:
    if name.endswith((".__main__", ".testing.scaled")):
        continue
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if has_spark or error.name.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        missing.append(name)
    else:
        names += [each.name for each in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")]
print(len(names), *missing)
"""


@pytest.fixture(scope="module")
def full(built, tmp_path_factory):
    """The wheel with all extras that are installed here, and pytest for the plugin."""
    return install(built.wheel, tmp_path_factory.mktemp("full") / "venv", "pytest", *installed_extras())


def manage(full, folder, *arguments):
    """Run ``manage.py`` of the example project, where a warning is an error; return its output."""
    command = ["-W", "error", str(ROOT / "example_django_project" / "manage.py"), *arguments]
    done = full.run(*command, cwd=folder, SQLITE_PATH=str(folder / "shop.sqlite3"))
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_module_is_imported_without_a_warning(full, tmp_path):
    project = {"PYTHONPATH": str(ROOT / "example_django_project"), "DJANGO_SETTINGS_MODULE": "shop.settings"}
    done = full.run("-W", "error", "-c", IMPORTS, cwd=tmp_path, **project)
    assert done.returncode == 0, done.stdout
    found, *missing = done.stdout.split()
    assert all(name.startswith("celery_rmq_delay.analytics.") for name in missing)
    if "pyspark" in installed_extras():
        assert (int(found), missing) == (len(list((ROOT / "celery_rmq_delay").rglob("*.py"))), [])


def test_the_example_project_passes_its_checks_and_migrates(full, tmp_path):
    assert "no issues" in manage(full, tmp_path, "check", "--fail-level", "WARNING")
    assert "No changes detected" in manage(full, tmp_path, "makemigrations", "--check", "--dry-run")
    assert "rmq_delay.0001_initial... OK" in manage(full, tmp_path, "migrate")
