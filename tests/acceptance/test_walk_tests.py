"""A newcomer's tests of retries: the page's file in an empty folder, with an installed wheel and nothing else."""

import time

import httpx
import pytest

from tests.support import ROOT
from tests.support.packaging.bare import build, install
from tests.support.snippets import write

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/test/test-with-a-private-broker.md"
FILE = "test_payments.py"
#: What pytest and Python write beside the tests.
OF_PYTEST = {".pytest_cache", "__pycache__"}
#: The objects of a broker, and what identifies one; the rest are statistics.
PARTS = ("vhosts", "queues", "exchanges", "bindings", "policies", "permissions", "users", "parameters")
IDENTITY = ("vhost", "name", "user", "source", "destination", "routing_key", "tags")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What ``pip install pytest pytest-xdist 'celery-rmq-delay[management]'`` installs."""
    wheel = build(tmp_path_factory.mktemp("dist")).wheel
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv", "pytest", "pytest-xdist", "httpx")


class Walk:
    """An empty folder with the page's file; the home and the folder for temporary files are empty, too."""

    def __init__(self, environment, folder):
        self._environment = environment
        self._empty = {name: folder / name for name in ("HOME", "TMPDIR")}
        self._project = folder / "project"
        for each in (self._project, *self._empty.values()):
            each.mkdir()
        write(PAGE, self._project, FILE)

    def run(self, what, *options, **variables):
        """Run the tests, which must pass and leave nothing on the disk; print how long they took."""
        started = time.monotonic()
        folders = {name: str(folder) for name, folder in self._empty.items()}
        variables = {**folders, "BROKER_URL": "", **variables}
        done = self._environment.run("-m", "pytest", *options, cwd=self._project, **variables)
        print(f"{what}: {time.monotonic() - started:.1f} s")
        assert done.returncode == 0, done.stdout
        assert " 2 passed in " in done.stdout
        assert "warning" not in done.stdout
        assert {each.name for each in self._project.iterdir()} - OF_PYTEST == {FILE}
        assert {name: list(folder.iterdir()) for name, folder in self._empty.items()} == {"HOME": [], "TMPDIR": []}


@pytest.fixture
def walk(installed, tmp_path):
    return Walk(installed, tmp_path)


def objects(broker):
    """Return all that a test could have left in a broker."""
    with httpx.Client(base_url=f"{broker.management_url}/api/") as api:
        found = {part: api.get(part).raise_for_status().json() for part in PARTS}
    return {part: sorted(str([each.get(name) for name in IDENTITY]) for each in found[part]) for part in PARTS}


def test_a_documented_file_passes_twice_on_private_brokers(walk):
    for _ in range(2):
        walk.run("without BROKER_URL")


def test_a_documented_file_passes_twice_on_a_running_broker(walk, managed):
    before = objects(managed)
    urls = {"BROKER_URL": managed.url, "RMQ_DELAY_MANAGEMENT_URL": str(managed.management_url)}
    for options in ((), (), ("-n", "2")):
        walk.run(f"with BROKER_URL {' '.join(options)}", *options, **urls)
        assert objects(managed) == before
