"""The distributions of a release: their files and metadata."""

import ast
import configparser
import email
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pathspec
import pytest
import yaml
from packaging.requirements import Requirement

import celery_rmq_delay
from tests.support import ROOT
from tests.support.packaging.bare import build

PACKAGE = ROOT / "celery_rmq_delay"
#: Third-party modules by the requirement that brings them, where the names differ.
BRINGS = {"prometheus_client": "prometheus-client", "py4j": "pyspark"}
#: The extras whose requirements a part of the package may import, the longest folder first.
EXTRAS = {
    "contrib/django/prometheus.py": {"django", "prometheus"},
    "contrib/django": {"django", "history", "management"},
    "analytics": {"history", "spark"},
    "history/output.py": {"history"},
    "history/schema.py": {"history"},
    "management": {"management"},
}


IGNORED = pathspec.GitIgnoreSpec.from_lines([".git", *(ROOT / ".gitignore").read_text().splitlines()])


def files(folder):
    """Return the files of a folder that git would keep, by their paths in the checkout or in an unpacked sdist."""
    found = {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()}
    return found - set(IGNORED.match_files(found))


def all_files():
    kept = [each for each in ROOT.iterdir() if not IGNORED.match_file(f"{each.name}/" if each.is_dir() else each.name)]
    return set.union(*(files(each) if each.is_dir() else {each.name} for each in kept))


@pytest.fixture
def metadata(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_package_with_all_its_files_and_nothing_else(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    info = f"celery_rmq_delay-{celery_rmq_delay.__version__}.dist-info"
    extra = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert names == files(PACKAGE) | extra
    django = "celery_rmq_delay/contrib/django"
    monitoring = ("monitoring/grafana-dashboard.json", "monitoring/prometheus-rules.yml")
    for kind in ("templates/admin/rmq_delay/", "static/rmq_delay/", "migrations/0001_", *monitoring):
        assert any(name.startswith(f"{django}/{kind}") for name in names), kind
    assert "celery_rmq_delay/py.typed" in names


def test_the_sdist_has_all_files_of_the_checkout(built):
    with tarfile.open(built.sdist) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    assert names == all_files() | {"PKG-INFO"}


def test_the_sdist_has_what_the_targets_of_its_makefile_run(built, tmp_path):
    shutil.unpack_archive(built.sdist, tmp_path, filter="data")
    (place,) = tmp_path.iterdir()
    makefile = (place / "Makefile").read_text()
    paths = set(re.findall(r"(?<![\w./])(?:\.github|scripts|tests)/[\w./*-]+", makefile))
    modules = {name for name in re.findall(r" -m (\w+)", makefile) if (ROOT / name).exists()}
    assert {"scripts/setup.py", ".github/workflows/*.yml"} <= paths
    assert {"benchmarks", "chaos", "example_django_project", "fuzz"} <= modules
    assert [pattern for pattern in paths | modules if not [*place.glob(pattern)]] == []
    done = subprocess.run([sys.executable, "scripts/setup.py", "--help"], cwd=place, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_metadata_describes_the_package(metadata):
    assert metadata["Name"] == "celery-rmq-delay"
    assert metadata["Version"] == celery_rmq_delay.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.10"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_description_on_a_package_index_is_the_readme_with_absolute_links(metadata):
    shown, written = str(metadata.get_payload()), (ROOT / "README.md").read_text()
    source = dict(each.split(", ") for each in metadata.get_all("Project-URL", []))["Source"]
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert len(links) == len(re.findall(r"\]\(", written)) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    raw = source.replace("//github.com", "//raw.githubusercontent.com")
    assert shown.replace(f"{raw}/main/", "").replace(f"{source}/blob/main/", "") == written
    assert "```mermaid" not in shown


def test_a_second_build_makes_the_same_files(built, tmp_path):
    again = build(tmp_path)
    for first, second in ((built.wheel, again.wheel), (built.sdist, again.sdist)):
        assert first.name == second.name
        assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_the_release_is_built_from_its_tag_and_published_without_a_password():
    release = workflow("release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    build_steps, publish = release["jobs"]["build"]["steps"], release["jobs"]["publish"]
    assert [step["run"] for step in build_steps if "python -m build" in step.get("run", "")] == ["python -m build"]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def third_party(path):
    """Return the modules of others that a file imports, at its top or in a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
    tops = {name.partition(".")[0] for name in found}
    return tops - sys.stdlib_module_names - {"celery_rmq_delay"}


def test_everything_that_is_imported_is_required_by_the_core_or_by_the_extra_of_its_part(metadata):
    required: dict[str, set[str]] = {extra: set() for extra in ["", *metadata.get_all("Provides-Extra", [])]}
    for text in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        extra = "" if requirement.marker is None else str(requirement.marker).split('"')[1]
        required[extra].add(requirement.name)
    missing = {}
    for path in PACKAGE.rglob("*.py"):
        place = str(path.relative_to(PACKAGE))
        if place.startswith("testing/"):  # is for pytest, which loads it
            continue
        extras = next((extras for part, extras in EXTRAS.items() if place.startswith(part)), set())
        known = required[""].union(*(required[extra] for extra in extras))
        if wrong := {name for name in third_party(path) if BRINGS.get(name, name) not in known}:
            missing[place] = wrong
    assert missing == {}


def test_each_promised_version_is_in_tox_and_in_the_workflow():
    text = (ROOT / "pyproject.toml").read_text()
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    environments = re.findall(r"py\S+", tox["tox"]["env_list"])
    pairs = workflow("ci.yml")["jobs"]["versions"]["strategy"]["matrix"]["include"]
    for python in re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text):
        of_python = {each for each in environments if each.startswith(f"py{python.replace('.', '')}-")}
        assert of_python
        assert {pair["environment"] for pair in pairs if pair["python"] == python} == of_python
    for django in re.findall(r'"Framework :: Django :: (\d\.\d)"', text):
        assert any(f"-django{django.replace('.', '')}-" in each for each in environments)
    local = set(re.findall(r"py[\w-]+", tox["tox"]["labels"]))
    assert local < set(environments)
    assert {each.partition("-")[0] for each in set(environments) - local} == {"py311"}, "that of 'make test'"


def test_nothing_is_published_that_was_not_tested():
    release = workflow("release.yml")["jobs"]
    assert release["build"]["needs"] == "ci"
    assert release["test"]["needs"] == "build"
    assert release["publish"]["needs"] == "test"
