"""A signal in the middle of a frame of the broker, whose further replies cannot be read then."""

import signal
import time
from typing import Any

import amqp
import kombu
import pytest

from celery_rmq_delay.amqp import connections
from celery_rmq_delay.amqp.scan import scanning
from celery_rmq_delay.app.inventory import connect
from celery_rmq_delay.stopping import exit_at_once, handling, interrupted_in_time, stop_behind
from tests.support.corpus import corpus
from tests.support.waiting import BUSY


def interrupt_next_frame(connection):
    """Let Ctrl-C come between the header of the next frame and its payload."""
    opened: Any = connection.connection
    transport = opened.transport
    read = transport._read

    def read_header(*arguments):
        transport._read = read
        header = read(*arguments)
        signal.raise_signal(signal.SIGINT)
        return header

    transport._read = read_header


@corpus("handler, stop", [(handling(exit_at_once), SystemExit), (interrupted_in_time(), KeyboardInterrupt)])
def test_a_scan_that_is_interrupted_in_the_middle_of_a_frame_ends(classic_lab, monkeypatch, handler, stop):
    monkeypatch.setattr(connections, "INTERRUPTED", 0.3)
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.default_int_handler)  # the tests have their own
    queue = classic_lab.queue()
    began = time.monotonic()
    with kombu.Connection(classic_lab.url) as connection:
        connect(connection)
        with pytest.raises((stop, OSError, amqp.AMQPError)) as caught, handler, scanning(connection, queue) as scan:
            interrupt_next_frame(connection)
            list(scan)
    assert isinstance(stop_behind(caught.value), stop)
    assert time.monotonic() - began < BUSY
