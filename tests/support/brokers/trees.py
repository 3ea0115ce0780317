"""Several RabbitMQ versions on one Debian machine, each in a tree built by debootstrap.

Debian releases carry RabbitMQ 3.10 (bookworm), 4.0 (trixie) and 4.3 (sid). The machine's own version needs no tree.

``python -m tests.support.brokers.trees build`` builds what is missing (root only, about a minute and 300 MB each).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from celery_rmq_delay.testing import PrivateServerError, ServerNotFoundError
from celery_rmq_delay.testing.servers.installation import Installation
from tests.support import ROOT

SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "sid"}
"""RabbitMQ version -> the Debian suite that has it (sid moves on, so 4.3 means 4.3 or newer)."""

DIRECTORY_VARIABLE = "RMQ_DELAY_BROKER_TREES"
"""Environment variable that names the folder of the trees."""

MIRROR_VARIABLE = "RMQ_DELAY_DEBIAN_MIRROR"
"""Environment variable that names a Debian mirror, for machines whose apt has none."""


def default_directory() -> Path:
    """Return the folder of the trees: the environment variable's, else ``.cache/brokers`` of the checkout."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named).absolute()
    return ROOT / ".cache" / "brokers"


def choose(name: str, directory: Path | None = None) -> Installation:
    """Return the installation that ``--rabbitmq NAME`` means.

    :param name: ``system``, a version of :data:`SUITES`, or the path of a rabbitmq-server or of a tree.
    :raises ServerNotFoundError: when it is not on this machine; the message has the fix.
    """
    if name in SUITES:
        if system_has(name):
            return Installation.find()
        tree = (directory or default_directory()) / name
        if not tree.is_dir():
            raise ServerNotFoundError(
                f"RabbitMQ {name} is not installed and there is no tree {tree}. "
                f"Build it as root: {Path(sys.executable).name} -m tests.support.brokers.trees build {name}"
            )
        return Installation.find(root=tree)
    return Installation.named(name)


def system_has(version: str) -> bool:
    """Return whether the machine's own RabbitMQ is of this version, such as ``3.10``."""
    try:
        return version_matches(Installation.find().version, version)
    except ServerNotFoundError:
        return False


def version_matches(found: str | None, wanted: str) -> bool:
    """Return whether a full version such as ``3.10.8`` belongs to ``3.10``."""
    return found is not None and (found == wanted or found.startswith(f"{wanted}."))


def build(versions: Sequence[str], directory: Path) -> None:
    """Build the trees that are missing, one after the other. Safe to run at the same time as another build.

    :raises PrivateServerError: without root, or when debootstrap fails; with the tail of its log.
    """
    wanted = [version for version in versions if not system_has(version)]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [version for version in wanted if not (directory / version).is_dir()]
        if missing:
            _require_debootstrap()
        for version in missing:
            _build_one(version, directory)
    for version in versions:
        installation = choose(version, directory)
        _print(f"RabbitMQ {version}: {installation.version} in {installation.root or installation.server}")


def debian_mirror() -> str:
    """Return the mirror that this machine's apt gets its main archive from.

    :raises PrivateServerError: when apt has no Debian archive.
    """
    if named := os.environ.get(MIRROR_VARIABLE):
        return named
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    try:
        targets = _output("apt-get", "indextargets", "--format", fields, "Created-By: Packages")
    except OSError:
        targets = ""
    if found := mirror_among(targets.splitlines(), _codename()):
        return found
    raise PrivateServerError(
        f"apt has no Debian archive with the suite {_codename() or '(unknown)'} and the component main among its "
        f"sources: name a Debian mirror with {MIRROR_VARIABLE}."
    )


def mirror_among(targets: Sequence[str], codename: str) -> str | None:
    """Return the first archive of the running release's main component.

    :param targets: lines ``URI SUITE COMPONENT``.
    """
    for target in targets:
        uri, suite, component = [*target.split(), "", "", ""][:3]
        if (
            suite in {codename, "stable", "testing", "unstable", "sid"}
            and component == "main"
            and "security" not in uri
        ):
            return uri
    return None


def _codename() -> str:
    release = Path("/etc/os-release")
    text = release.read_text() if release.is_file() else ""
    if not re.search(r"^ID=\"?debian\"?$", text, re.MULTILINE):
        return ""
    found = re.search(r"^VERSION_CODENAME=\"?(\w+)", text, re.MULTILINE)
    return found.group(1) if found else "sid"


def _require_debootstrap() -> None:
    if os.geteuid() != 0:
        raise PrivateServerError(
            "Building a broker tree needs root (debootstrap and chroot). Run it as root, or test against one broker: "
            "pytest --rabbitmq system."
        )
    if shutil.which("debootstrap"):
        return
    if not shutil.which("apt-get"):
        raise PrivateServerError(
            "Building a broker tree needs debootstrap, and there is no apt-get to install it with."
        )
    _print("installing debootstrap")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "debootstrap"]
    if subprocess.run(install, env=environment, capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "update"], env=environment, capture_output=True, check=False)
        done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PrivateServerError(f"apt-get install debootstrap failed:\n{done.stdout}{done.stderr}")


def _build_one(version: str, directory: Path) -> None:
    suite, started = SUITES[version], time.monotonic()
    mirror = debian_mirror()
    _print(f"RabbitMQ {version}: building {directory / version} from Debian {suite} ...")
    partial = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=directory))
    partial.chmod(0o755)
    log = directory / f"{version}.log"
    command = ["debootstrap", "--variant=minbase", "--include=rabbitmq-server", suite, str(partial), mirror]
    try:
        with log.open("w") as output:
            # Mounts of debootstrap end with its mount namespace, so that deleting the tree is safe.
            done = subprocess.run(
                ["unshare", "--mount", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_with_apt_proxy(),
                check=False,
            )
        if done.returncode:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise PrivateServerError(f"debootstrap {suite} from {mirror} ended with code {done.returncode}:\n{tail}")
        for package in (partial / "var" / "cache" / "apt" / "archives").glob("*.deb"):
            package.unlink()
        partial.rename(directory / version)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _print(f"RabbitMQ {version}: built in {time.monotonic() - started:.0f} s")


def _with_apt_proxy() -> dict[str, str]:
    """Return our environment with the proxy apt is configured with, which debootstrap would not read itself."""
    environment = dict(os.environ)
    for scheme in ("http", "https"):
        found = re.search(r'Proxy "([^"]+)"', _output("apt-config", "dump", f"Acquire::{scheme}::Proxy"))
        if found and found.group(1) != "DIRECT":
            environment.setdefault(f"{scheme}_proxy", found.group(1))
    return environment


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.brokers.trees", description=__doc__)
    parser.add_argument("action", choices=["build", "where"], help="build what is missing, or print the folder")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="the folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.versions) - set(SUITES):
        parser.error(f"unknown RabbitMQ version {', '.join(sorted(unknown))}: expected {', '.join(SUITES)}")
    if options.action == "where":
        _print(str(options.dir))
        return 0
    try:
        build(options.versions or list(SUITES), options.dir.absolute())
    except PrivateServerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
