"""What ``make`` installs, and what it says when it may not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.py"


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
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("BROKER_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    return setup


def test_a_bare_machine_misses_everything(bare_machine: ModuleType) -> None:
    found = bare_machine.missing_packages(servers=True, trees=True)
    assert found == ["python3-venv", "rabbitmq-server", "redis-server", "debootstrap"]


def test_servers_named_by_url_are_not_installed(bare_machine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_URL", "amqp://elsewhere//")
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere/0")
    assert bare_machine.missing_packages(servers=True, trees=False) == ["python3-venv"]


def test_lint_needs_no_servers(bare_machine: ModuleType) -> None:
    assert bare_machine.missing_packages(servers=False, trees=False) == ["python3-venv"]


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
