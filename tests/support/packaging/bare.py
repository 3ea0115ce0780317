"""An environment with the built wheel and the core's dependencies, made without a package index."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution, distributions, requires
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement

from tests.support import ROOT
from tests.support.waiting import SECONDS


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


def build(folder: Path) -> Built:
    """Build the sdist from the checkout, and the wheel from the sdist. The backend is the one installed here."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return found_in(folder)


def found_in(folder: Path) -> Built:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees nothing of the checkout."""

    python: Path

    def run(
        self, *arguments: str, cwd: Path, seconds: float = SECONDS, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run its Python; return the completed process, with both outputs in ``stdout``."""
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd,
            env=self.variables(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )

    def variables(self, **more: str) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more


def install(wheel: Path, folder: Path, *more: str) -> Environment:
    """Install the wheel into a new environment, with the core's requirements and ``more`` distributions only.

    The dependencies are links to those that the tests run with, so that nothing is downloaded: a test that needs an
    index fails when the index does.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=SECONDS)
    environment = Environment(folder / "bin" / "python")
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    site = Path(paths["purelib"])
    (info,) = (each for each in ZipPath(wheel).iterdir() if each.name.endswith(".dist-info"))
    for found in (*dependencies(PathDistribution(info)), *with_dependencies(more)):
        for name in top_level(found):
            link = site / name
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(name))))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(environment.python),
        "--disable-pip-version-check",
        "--isolated",
    ]
    for command in (["install", "--quiet", "--no-index", "--no-deps", str(wheel)], ["check"]):
        done = subprocess.run(
            [*pip, *command], env=environment.variables(), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return environment


def dependencies(needing: Distribution) -> Iterator[Distribution]:
    """Return the requirements of a distribution without extras, direct and indirect."""
    wanted = map(Requirement, needing.requires or [])
    names = [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    yield from with_dependencies(names)


def installed_extras() -> set[str]:
    """Return the distributions that the extras of the package require, as far as they are installed here."""
    required = map(Requirement, requires("celery-rmq-delay") or [])
    wanted = {each.name for each in required if each.marker is not None}
    return {name for name in wanted if any(distributions(name=name))}


def with_dependencies(names: Iterable[str]) -> Iterator[Distribution]:
    for name in names:
        found = distribution(name)
        yield found
        yield from dependencies(found)


def top_level(found: Distribution) -> set[str]:
    """Return the files and folders of a distribution in its site-packages."""
    names = {file.parts[0] for file in found.files or []}
    return names - {"..", "__pycache__"}
