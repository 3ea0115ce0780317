"""Several RabbitMQ versions on one Debian machine, each in a tree built by debootstrap.

Debian releases carry RabbitMQ 3.10 (bookworm), 4.0 (trixie) and 4.3 (sid). The machine's own version needs no tree.

``python -m tests.support.brokers.trees build`` builds what is missing (root only, about a minute and 300 MB each).
"""

import argparse
import fcntl
import os
import platform
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
MIRROR_VARIABLE = "RMQ_DELAY_DEBIAN_MIRROR"


def default_directory() -> Path:
    """Return the folder of the trees: the environment variable's, else ``.cache/brokers`` of the checkout."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or ROOT / ".cache/brokers").absolute()


def choose(name: str, directory: Path | None = None) -> Installation:
    """Return the installation that ``--rabbitmq NAME`` means.

    :param name: ``system``, a version of :data:`SUITES`, or the path of a rabbitmq-server or of a tree.
    :raises ServerNotFoundError: when it is not on this machine; the message has the fix.
    """
    if name not in SUITES:
        return Installation.named(name)
    if system_has(name):
        return Installation.find()
    tree = (directory or default_directory()) / name
    if not tree.is_dir():
        raise ServerNotFoundError(
            f"RabbitMQ {name} is not installed and there is no tree {tree}. "
            f"Build it as root: {Path(sys.executable).name} -m tests.support.brokers.trees build {name}"
        )
    return Installation.find(root=tree)


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
        print(f"RabbitMQ {version}: {installation.version} in {installation.root or installation.server}")


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
    suites = {codename, "stable", "testing", "unstable", "sid"}
    for uri, suite, component in (row for target in targets if len(row := target.split()) == 3):
        if component == "main" and suite in suites and "security" not in uri:
            return uri
    return None


def _codename() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return release.get("VERSION_CODENAME", "sid") if release["ID"] == "debian" else ""


def _require_debootstrap() -> None:
    if os.geteuid() != 0:
        raise PrivateServerError(
            "Building a broker tree needs root (debootstrap and chroot). Run it as root, or test against one broker: "
            "pytest --rabbitmq system."
        )
    if not shutil.which("debootstrap"):
        raise PrivateServerError("Building a broker tree needs debootstrap: `make test-brokers` installs it.")


def _build_one(version: str, directory: Path) -> None:
    suite, started = SUITES[version], time.monotonic()
    mirror = debian_mirror()
    print(f"RabbitMQ {version}: building {directory / version} from Debian {suite} ...")
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
    print(f"RabbitMQ {version}: built in {time.monotonic() - started:.0f} s")


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.brokers.trees", description=__doc__)
    parser.add_argument("action", choices=["build"], help="build what is missing")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="the folder (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.versions) - set(SUITES):
        parser.error(f"unknown RabbitMQ version {', '.join(sorted(unknown))}: expected {', '.join(SUITES)}")
    try:
        build(options.versions or list(SUITES), options.dir.absolute())
    except PrivateServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
