#!/usr/bin/env python3
"""Prepare a checkout: system packages (as root on Debian), the virtual environment, the package and its tools.

Uses only the standard library, as it runs before anything is installed. A second run takes milliseconds: a stamp file
in the environment records the installation, and depends on pyproject.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / os.environ.get("VENV", ".venv")
PYTHON = VENV / "bin" / "python"
EXTRAS = "django,history,management,prometheus,spark"
OLDEST_PYTHON = (3, 10)
OLDEST_JAVA = 17  # required by Spark 4
# Packages must not start or stop services here: 101 is "forbidden by policy".
POLICY = Path("/usr/sbin/policy-rc.d")


def log(line: str) -> None:
    """Log progress on stderr: stdout is for the make target that follows."""
    sys.stderr.write(f"setup: {line}\n")


def fail(message: str) -> None:
    """End with exit code 1 and a message."""
    raise SystemExit(f"setup: {message}")


def rabbitmq_installed() -> bool:
    """Search in the same places as the package, which is not installed yet."""
    folders = (
        "/usr/lib/rabbitmq/bin",
        "/opt/homebrew/opt/rabbitmq/sbin",
        "/usr/local/opt/rabbitmq/sbin",
        "/opt/rabbitmq/sbin",
    )
    return bool(shutil.which("rabbitmq-server")) or any(Path(folder, "rabbitmq-server").is_file() for folder in folders)


def postgres_installed() -> bool:
    """Search in the same places as the package, which is not installed yet."""
    folders = ("usr/lib/postgresql/*", "usr/pgsql-*", "opt/homebrew/opt/postgresql*", "usr/local/opt/postgresql*")
    return bool(shutil.which("postgres")) or any(any(Path("/").glob(f"{folder}/bin/postgres")) for folder in folders)


def faketime_installed() -> bool:
    """Return whether libfaketime, which steps the clock of a process, is installed."""
    places = ("usr/lib/*/faketime", "usr/lib/faketime", "opt/homebrew/lib/faketime", "usr/local/lib/faketime")
    return any(any(Path("/").glob(f"{place}/libfaketime*")) for place in places)


def java_command() -> str | None:
    """Return the Java command that Spark's scripts would use."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def java_version(command: str) -> int | None:
    """Return the major version of a Java command, None if it does not run; for ``1.8`` it is 8."""
    try:
        done = subprocess.run(  # noqa: S603
            [command, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stdout)
    return int(found[1]) if found else None


def java_installed() -> bool:
    """Return whether there is a Java for Spark; fail if JAVA_HOME names an unsuitable one."""
    command = java_command()
    version = java_version(command) if command else None
    if version is not None and version >= OLDEST_JAVA:
        return True
    if os.environ.get("JAVA_HOME"):  # it overrides the Java that would be installed
        found = f"Java {version}" if version else "no Java that runs"
        fail(
            f"JAVA_HOME is {os.environ['JAVA_HOME']!r}: {found}. Spark needs Java {OLDEST_JAVA} or newer: "
            "set JAVA_HOME to one, or unset it."
        )
    return False


def missing_packages(*, servers: bool, test_servers: bool, trees: bool) -> list[str]:
    """Return the missing Debian packages."""
    missing = []
    try:
        has_python = PYTHON.exists()
    except PermissionError as error:
        fail(f"{error.filename} is of another user, who may have made .venv: delete .venv, or work as that user.")
    if not has_python and not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        missing.append("python3-venv")
    if servers and not os.environ.get("BROKER_URL") and not rabbitmq_installed():
        missing.append("rabbitmq-server")
    if servers and not os.environ.get("REDIS_URL") and not shutil.which("redis-server"):
        missing.append("redis-server")
    if servers and not java_installed():
        missing.append("default-jre-headless")
    if test_servers:
        missing += missing_test_packages()
    if trees and not shutil.which("debootstrap"):
        missing.append("debootstrap")
    return missing


def missing_test_packages() -> list[str]:
    """Return the missing Debian packages that only tests need."""
    missing = []
    if not os.environ.get("POSTGRES_URL") and not postgres_installed():
        missing.append("postgresql")
    if not shutil.which(os.environ.get("CHROMIUM") or "chromium"):
        missing += ["chromium", "fonts-dejavu-core"]  # without a font screenshots contain no text
    if not faketime_installed():
        missing.append("libfaketime")
    # curl: a documented CI job waits for its broker with it.
    missing += [program for program in ("prometheus", "curl") if not shutil.which(program)]
    # For nodes in separate network namespaces, which only root can create.
    if os.geteuid() == 0 and not shutil.which("ip"):
        missing.append("iproute2")
    return missing


def install_packages(packages: list[str]) -> None:
    """Install Debian packages without starting their services; fail with instructions without root or apt."""
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        fail(
            f"missing: {names} (Debian names). Install them, for example with brew install; Java with "
            "brew install openjdk@21 and JAVA_HOME=$(brew --prefix openjdk@21)."
        )
    if os.geteuid() != 0:
        fail(
            f"missing: {names}. Install with:\n\n    sudo apt-get install -y {names}\n\n"
            "or set BROKER_URL, REDIS_URL, POSTGRES_URL, CHROMIUM and JAVA_HOME to existing ones."
        )
    log(f"installing {names}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    keep = POLICY.exists() or POLICY.is_symlink()
    if not keep:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        if run_quietly(install, environment) is None:
            return
        run_quietly(["apt-get", "update", "-q"], environment)
        if (output := run_quietly(install, environment)) is not None:
            fail(f"{' '.join(install)} failed:\n{output}")
    finally:
        if not keep:
            POLICY.unlink(missing_ok=True)


def run_quietly(command: list[str], environment: dict[str, str] | None = None) -> str | None:
    """Run a command; return None on success, otherwise its output."""
    done = subprocess.run(  # noqa: S603
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout if done.returncode else None


def stamp_of(group: str) -> str:
    """Return the identity of an installation: the project file, this script, the group and the Python."""
    parts = [(ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes(), group.encode()]
    parts.append(f"{sys.version_info[:2]} {ROOT}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def install_python(groups: list[str]) -> None:
    """Create the virtual environment and install the package with extras and dependency groups."""
    stamp_file = VENV / ".stamp"
    known = stamp_file.read_text().split() if stamp_file.exists() and PYTHON.exists() else []
    missing = [group for group in groups if stamp_of(group) not in known]
    if not missing:
        return
    if not PYTHON.exists() or run_quietly([str(PYTHON), "-c", "import pip"]) is not None:
        log(f"creating {VENV}")
        if (output := run_quietly([sys.executable, "-m", "venv", "--clear", str(VENV)])) is not None:
            fail(f"the virtual environment could not be created:\n{output}")
        known = []
        missing = groups
    log(f"installing the package with [{EXTRAS}] and the groups {', '.join(missing)}")
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    wanted = [argument for group in missing for argument in ("--group", f"{ROOT / 'pyproject.toml'}:{group}")]
    for command in ([*pip, "--upgrade", "pip>=25.1"], [*pip, *wanted, "--editable", f"{ROOT}[{EXTRAS}]"]):
        if (output := run_quietly(command)) is not None:
            fail(f"{' '.join(command)} failed:\n{output}")
    stamp_file.write_text("\n".join({*known, *(stamp_of(group) for group in missing)}))


def main() -> None:
    """Check the installation, and install missing parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", action="append", default=[], help="dependency group to install")
    parser.add_argument("--servers", action="store_true", help="RabbitMQ, Redis and Java are needed")
    parser.add_argument(
        "--test-servers", action="store_true", help="PostgreSQL, Chromium and Prometheus are needed, too"
    )
    parser.add_argument("--trees", action="store_true", help="debootstrap is needed")
    options = parser.parse_args()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if inherited as ignored, failures of commands would not be detected
    if sys.version_info < OLDEST_PYTHON:
        fail(f"Python {sys.version.split()[0]} is too old: 3.10 or newer is needed.")
    if packages := missing_packages(
        servers=options.servers or options.test_servers, test_servers=options.test_servers, trees=options.trees
    ):
        install_packages(packages)
        if "default-jre-headless" in packages and not java_installed():
            fail(f"this system's default Java is older than {OLDEST_JAVA}, which Spark needs. Install a newer one.")
    install_python(options.group or ["test"])


if __name__ == "__main__":
    main()
