"""The installations of ``make``, and its errors without permission."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import ROOT

SCRIPT = ROOT / "scripts" / "setup.py"


@pytest.fixture
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare_machine(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A machine with apt and nothing else."""
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(setup, "rabbitmq_installed", lambda: False)
    monkeypatch.setattr(setup, "postgres_installed", lambda: False)
    monkeypatch.setattr(setup, "faketime_installed", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("BROKER_URL", "REDIS_URL", "POSTGRES_URL", "CHROMIUM", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return setup


def test_on_a_bare_machine_everything_is_missing(bare_machine: ModuleType) -> None:
    found = bare_machine.missing_packages(servers=True, test_servers=True, trees=True)
    servers = ["rabbitmq-server", "redis-server", "default-jre-headless", "postgresql"]
    assert found == [
        "python3-venv",
        *servers,
        "chromium",
        "fonts-dejavu-core",
        "libfaketime",
        "prometheus",
        "curl",
        "iproute2",
        "debootstrap",
    ]


def test_the_demo_needs_neither_a_database_server_nor_a_browser(bare_machine: ModuleType) -> None:
    found = bare_machine.missing_packages(servers=True, test_servers=False, trees=False)
    assert found == ["python3-venv", "rabbitmq-server", "redis-server", "default-jre-headless"]


def test_servers_named_by_url_are_not_installed(bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_URL", "amqp://elsewhere//")
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere/0")
    monkeypatch.setenv("POSTGRES_URL", "postgresql://elsewhere/shop")
    found = bare_machine.missing_packages(servers=True, test_servers=True, trees=False)
    assert found == [
        "python3-venv",
        "default-jre-headless",
        "chromium",
        "fonts-dejavu-core",
        "libfaketime",
        "prometheus",
        "curl",
        "iproute2",
    ]


def test_a_browser_named_by_its_program_is_not_installed(
    bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHROMIUM", "/opt/browser")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "/opt/browser" else None)
    found = bare_machine.missing_packages(servers=False, test_servers=True, trees=False)
    assert found == ["python3-venv", "postgresql", "libfaketime", "prometheus", "curl", "iproute2"]


def test_networks_of_their_own_are_for_root_alone(bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "iproute2" not in bare_machine.missing_packages(servers=True, test_servers=True, trees=True)


@pytest.mark.parametrize(
    ("printed", "enough"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "25.0.1" 2025-10-21 LTS', True),
        ('openjdk version "11.0.27" 2025-04-15', False),
        ('java version "1.8.0_451"', False),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", False),
    ],
)
def test_java_counts_as_installed_from_17_on(
    bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, enough: bool
) -> None:
    java = java_that_prints(tmp_path, printed)
    monkeypatch.setattr(shutil, "which", lambda name: str(java) if name == "java" else None)
    assert bare_machine.java_installed() is enough


def test_an_old_java_in_java_home_is_reported_as_it_hides_an_installed_one(
    bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java_that_prints(tmp_path, 'openjdk version "11.0.27" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"JAVA_HOME is .*: Java 11\. Spark needs Java 17 or newer"):
        bare_machine.java_installed()


def test_a_java_home_without_java_is_reported(bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SystemExit, match="JAVA_HOME is '/nowhere': no Java that runs"):
        bare_machine.java_installed()


def java_that_prints(home: Path, printed: str) -> Path:
    """Make a Java that prints this as its version, on stderr like a real one."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{printed}\nEND\n")
    java.chmod(0o755)
    return java


def test_lint_needs_no_servers(bare_machine: ModuleType) -> None:
    assert bare_machine.missing_packages(servers=False, test_servers=False, trees=False) == ["python3-venv"]


def test_without_root_one_command_is_printed_and_the_exit_code_is_1(
    bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="sudo apt-get install -y rabbitmq-server redis-server\n") as ended:
        bare_machine.install_packages(["rabbitmq-server", "redis-server"])
    assert isinstance(ended.value.code, str)  # Python prints it and exits with 1


def test_nothing_is_installed_twice(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "bin" / "python")
    setup.PYTHON.parent.mkdir()
    setup.PYTHON.touch()
    monkeypatch.setattr(setup, "run_quietly", lambda command, environment=None: commands.append(command))
    setup.install_python(["test"])
    done = len(commands)
    assert done > 0
    setup.install_python(["test"])
    assert len(commands) == done
    setup.install_python(["test", "lint"])
    assert len(commands) > done
    assert not any(argument.endswith(":test") for command in commands[done:] for argument in command)
