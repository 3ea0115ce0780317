"""The installations of ``make``, and its errors without permission."""

import importlib.util
import os
import shutil
from types import ModuleType
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.corpus import corpus


@pytest.fixture
def setup():
    spec: Any = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts/setup.py")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare_machine(setup, monkeypatch, tmp_path):
    """A machine with apt and nothing else."""
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    for program in ("rabbitmq", "postgres", "faketime"):
        monkeypatch.setattr(setup, f"{program}_installed", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("BROKER_URL", "REDIS_URL", "POSTGRES_URL", "CHROMIUM", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return setup


#: Packages by what needs them, in the order in which they are listed.
PYTHON, JAVA, TREES = ["python3-venv"], ["default-jre-headless"], ["debootstrap"]
SERVERS, BROWSER = ["rabbitmq-server", "redis-server"], ["chromium", "fonts-dejavu-core"]
TOOLS = ["libfaketime", "prometheus", "curl", "iproute2"]
ELSEWHERE = {"BROKER_URL": "amqp://elsewhere//", "REDIS_URL": "redis://elsewhere/0", "POSTGRES_URL": "postgresql://e/s"}


@corpus(
    "wanted, user, given, missing",
    [
        ("", 0, {}, PYTHON),  # lint needs no servers
        ("servers", 0, {}, [*PYTHON, *SERVERS, *JAVA]),  # the demo
        ("servers, test_servers, trees", 0, {}, PYTHON + SERVERS + JAVA + ["postgresql"] + BROWSER + TOOLS + TREES),
        ("servers, test_servers", 0, ELSEWHERE, PYTHON + JAVA + BROWSER + TOOLS),
        ("test_servers", 0, {"CHROMIUM": "/opt/browser"}, [*PYTHON, "postgresql", *TOOLS]),
        ("test_servers", 1000, {}, [*PYTHON, "postgresql", *BROWSER, *TOOLS[:-1]]),  # networks are for root alone
    ],
)
def test_what_a_machine_with_nothing_but_apt_has_to_install(bare_machine, monkeypatch, wanted, user, given, missing):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in ("apt-get", "/opt/browser") else None)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    options = {name: name in wanted.split(", ") for name in ("servers", "test_servers", "trees")}
    assert bare_machine.missing_packages(**options) == missing


@corpus(
    "printed, enough",
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "25.0.1" 2025-10-21 LTS', True),
        ('openjdk version "11.0.27" 2025-04-15', False),
        ('java version "1.8.0_451"', False),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", False),
    ],
)
def test_java_counts_as_installed_from_17_on(bare_machine, monkeypatch, tmp_path, printed, enough):
    java = java_that_prints(tmp_path, printed)
    monkeypatch.setattr(shutil, "which", lambda name: str(java) if name == "java" else None)
    assert bare_machine.java_installed() is enough


def test_a_java_home_without_a_java_that_spark_can_use_is_reported(bare_machine, monkeypatch, tmp_path):
    java_that_prints(tmp_path, 'openjdk version "11.0.27" 2025-04-15')
    for home, found in ((tmp_path, r"Java 11\. Spark needs Java 17 or newer"), ("/nowhere", "no Java that runs")):
        monkeypatch.setenv("JAVA_HOME", str(home))
        with pytest.raises(SystemExit, match=f"JAVA_HOME is '{home}': {found}"):
            bare_machine.java_installed()


def java_that_prints(home, printed):
    """Make a Java that prints this as its version, on stderr like a real one."""
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{printed}\nEND\n")
    java.chmod(0o755)
    return java


def test_without_root_one_command_is_printed_and_the_exit_code_is_1(bare_machine, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match="sudo apt-get install -y rabbitmq-server redis-server\n") as ended:
        bare_machine.install_packages(["rabbitmq-server", "redis-server"])
    assert isinstance(ended.value.code, str)  # Python prints it and exits with 1


def test_nothing_is_installed_twice(setup, monkeypatch, tmp_path):
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
