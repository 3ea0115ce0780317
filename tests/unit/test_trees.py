"""Choosing and building RabbitMQ versions."""

import os

import pytest

from celery_rmq_delay.testing import ServerNotFoundError
from celery_rmq_delay.testing.servers.installation import Installation
from tests.support.brokers import trees
from tests.support.corpus import corpus


def fake_server(folder):
    server = folder / "rabbitmq_server-4.0.5" / "sbin" / "rabbitmq-server"
    server.parent.mkdir(parents=True)
    server.write_text("#!/bin/sh\n")
    return server


@corpus("found, wanted, same", [("3.10.8", "3.10", True), ("3.1.8", "3.10", False), (None, "4.0", False)])
def test_a_full_version_belongs_to_its_series(found, wanted, same):
    assert trees.version_matches(found, wanted) is same


def test_the_mirror_is_the_one_apt_uses_for_the_main_archive_or_the_named_one(monkeypatch):
    targets = [
        "http://security.example/debian-security bookworm-security main",
        "http://vendor.example/apt bookworm stable",
        "http://mirror.example/debian bookworm contrib",
        "http://mirror.example/debian bookworm main",
    ]
    assert trees.mirror_among(targets, "bookworm") == "http://mirror.example/debian"
    assert trees.mirror_among(targets[:3], "bookworm") is None
    assert trees.mirror_among(["", "x"], "bookworm") is None
    monkeypatch.setenv(trees.MIRROR_VARIABLE, "http://named.example/debian")
    assert trees.debian_mirror() == "http://named.example/debian"


def test_a_missing_tree_is_named_with_the_command_that_builds_it(monkeypatch, tmp_path):
    monkeypatch.setattr(trees, "system_has", lambda version: False)
    with pytest.raises(ServerNotFoundError, match=r"trees build 4\.3"):
        trees.choose("4.3", tmp_path)


def test_an_unknown_choice_lists_the_choices():
    with pytest.raises(
        ServerNotFoundError, match=r"expected system, or the path of a rabbitmq-server or of a chroot tree"
    ):
        trees.choose("5.0")


def test_a_path_to_a_server_is_a_choice(tmp_path):
    server = fake_server(tmp_path)
    chosen = trees.choose(str(server))
    assert (chosen.server, chosen.root, chosen.version) == (str(server), None, "4.0.5")


def test_the_command_line_ends_with_the_error_and_code_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(trees, "system_has", lambda version: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert trees.main(["build", "4.0", "--dir", str(tmp_path)]) == 1
    assert "needs root" in capsys.readouterr().err


def test_a_wrapper_that_insists_on_its_user_is_passed_over(monkeypatch, tmp_path):
    wrapper = tmp_path / "rabbitmq-server"
    wrapper.write_text("#!/bin/sh\nif [ `id -u` = `id -u rabbitmq` ]; then exec it; fi\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        found = Installation.find().server
    except ServerNotFoundError:
        return
    assert found != str(wrapper)


def test_a_tree_runs_its_programs_in_a_mount_namespace_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    fake_server(tmp_path / "usr" / "lib" / "rabbitmq" / "lib")
    found = Installation.find(root=tmp_path)
    assert found.server == "/usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin/rabbitmq-server"
    assert found.version == "4.0.5"
    command = found.command(found.server, "-noinput")
    assert command[:2] == ["unshare", "--mount"]
    assert command[-3:] == [str(tmp_path), found.server, "-noinput"]


def test_a_tree_without_root_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ServerNotFoundError, match="run as root"):
        Installation.find(root=tmp_path)
