"""Ports of private servers."""

import os
import subprocess
import sys

import pytest

from celery_rmq_delay.testing import PrivateServerError
from celery_rmq_delay.testing.servers import host as ports

ANOTHER = """
import os
from celery_rmq_delay.testing import PrivateServerError
from celery_rmq_delay.testing.servers import host as ports
ports._RANGE = {range}
ports._reservations = lambda: reserved
reserved = os.open({reserved!r}, os.O_RDWR)
try:
    while True:
        print(ports.free_port(), flush=True)
except PrivateServerError:
    print("none", flush=True)
input()
"""


def test_two_processes_never_get_the_same_port_while_both_run(monkeypatch, tmp_path):
    first = next(port for port in range(15_000, 32_000, 8) if all(map(ports.is_free, range(port, port + 8))))
    monkeypatch.setattr(ports, "_RANGE", (first, first + 7))
    # These two share a file of their own: another run of this test wants the same ports.
    reserved = tmp_path / "reserved"
    descriptor = os.open(reserved, os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(ports, "_reservations", lambda: descriptor)
    mine = {ports.free_port() for _ in range(3)}
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER.format(range=(first, first + 7), reserved=str(reserved))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = {int(line) for line in iter(other.stdout.readline, "none\n")}
        assert len(theirs) > 1
        assert not mine & theirs
        with pytest.raises(PrivateServerError, match="were all in use"):
            ports.free_port()
        other.communicate("\n")
    assert ports.free_port() in theirs, "the ports of an ended process are free"
    os.close(descriptor)
