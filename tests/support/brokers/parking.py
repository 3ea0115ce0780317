"""Numbered messages: parked in bulk, and counted when they are back."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import amqp
import kombu

from celery_rmq_delay.amqp.apply import declare
from celery_rmq_delay.amqp.confirms import ConfirmingPublisher, confirming_channel
from celery_rmq_delay.amqp.objects import Objects, Queue, arguments
from celery_rmq_delay.amqp.route import Route
from celery_rmq_delay.app.exact import ExactDelays
from celery_rmq_delay.exceptions import PublishError
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.servers.broker import erlang_binary
from tests.support import ROOT
from tests.support.waiting import wait_for

#: Seconds after which a quorum queue publishes a dead letter again that a dead node did not confirm: such a message may
#: be late by this time. RabbitMQ's default is 180.
DEAD_LETTER_TIMEOUT = 5
#: Unconfirmed dead letters of a quorum queue: as many may be delivered twice when its node dies.
DEAD_LETTERS_AT_ONCE = 32
#: Maximum number of publishes that wait for their confirms.
WINDOW = 500

Message = tuple[int, Route]


def hasten(node: PrivateBroker) -> None:
    """Let the quorum queues of a node wait only `DEAD_LETTER_TIMEOUT` for confirms of a dead node.

    A queue reads the value when it elects its leader. Queues that are declared later have it, and all of them once the
    node has started again: an election may come before a command can reach the node.
    """
    value = f"dead_letter_worker_publisher_confirm_timeout, {1000 * DEAD_LETTER_TIMEOUT}"
    node.evaluate(f"application:set_env(rabbit, {value})")
    (node.log_path.parent.parent / "advanced.config").write_text(f"[{{rabbit, [{{{value}}}]}}].\n")


def metadata_to_disk(node: PrivateBroker) -> None:
    """Let a node write its queues to disk now; without Mnesia it has done so when it declared them.

    Mnesia writes the commit of a transaction to disk up to two seconds later, in another process: a node that is
    killed in between rolls the transaction back at its start. And Ra writes its list of quorum queues when it has not
    been used for half a second: a quorum queue that is not in it after a kill never has a leader again.
    """
    node.evaluate(
        "case whereis(mnesia_recover) of undefined -> ok; "
        "_ -> sys:get_state(mnesia_recover), ok = mnesia:sync_log() end, "
        "lists:foreach(fun dets:sync/1, dets:all())"
    )


def dead_letters_to_disk(node: PrivateBroker, queues: Iterable[str]) -> None:
    """Wait until classic queues have their dead letters on disk.

    As no publisher waits for a confirm of them, the queues write them only after some idle time, before they
    hibernate: after some 0.3 s (RabbitMQ 3.10) or 1 s (4.0, 4.3). A broker that is killed before has lost it.
    """
    names = ", ".join(map(erlang_binary, queues))
    awake = (
        f"length([Q || Q <- rabbit_amqqueue:list(), lists:member(element(4, amqqueue:get_name(Q)), [{names}]), "
        "{_, {_, F, _}} <- [process_info(amqqueue:get_pid(Q), current_function)], F =/= hibernate])"
    )
    wait_for(lambda: node.evaluate(awake) == "0", "all on disk")


def exact_delays(**settings: Any) -> ExactDelays:
    """Return the exact delays of an app with these settings; ``exact_queue_type`` has to be among them."""
    return ExactDelays(parse_settings(settings), "classic")


def declare_queue(connection: kombu.Connection, name: str, kind: str, **more: Any) -> None:
    """Declare a durable queue to which messages return."""
    declared = Queue(name, arguments({"x-queue-type": kind, **more}))
    with connection.channel() as channel:
        declare(channel, Objects(queues=(declared,)))


def numbered(number: int, headers: Mapping[str, Any] | None = None) -> amqp.Message:
    """Return the message of a number; it contains the time at which it was made."""
    return amqp.Message(f"{number} {time.time()}", delivery_mode=2, application_headers=dict(headers or {}))


def publish_all(connection: kombu.Connection, messages: Iterable[Message]) -> tuple[set[int], set[int]]:
    """Publish with confirm, many at a time; return the numbers (confirmed, not confirmed)."""
    publisher = ConfirmingPublisher(confirming_channel(connection))
    confirmed, tried = set[int](), set[int]()

    def settle(number: int, error: PublishError | None) -> None:
        if error is None:
            confirmed.add(number)

    with contextlib.suppress(OSError, amqp.AMQPError):
        for number, route in messages:
            tried.add(number)
            publisher.publish(numbered(number, route.headers), route, lambda error, n=number: settle(n, error))
            while publisher.waiting > WINDOW:
                connection.drain_events(timeout=30)
        publisher.wait(30)
    return confirmed, tried - confirmed


@dataclass
class Arrivals:
    """Messages that came back to some queues: how often each number, and when first."""

    counts: Counter[int] = field(default_factory=Counter)
    ages: dict[int, float] = field(default_factory=dict)
    #: How many of the second and later deliveries had the broker's flag.
    flagged: int = 0

    @property
    def doubled(self) -> dict[int, int]:
        """The numbers that came more than once, and how often."""
        return {number: count for number, count in self.counts.items() if count > 1}

    def take(self, number: int, made: float, message: amqp.Message) -> None:
        self.counts[number] += 1
        self.ages.setdefault(number, time.time() - made)
        if self.counts[number] > 1:
            self.flagged += bool(message.delivery_info["redelivered"])


def number_and_time(message: amqp.Message) -> tuple[int, float]:
    number, made = str(message.body).split()
    return int(number), float(made)


def collect(
    url: str,
    queues: Iterable[str],
    wanted: set[int],
    seconds: float,
    *,
    quiet: float = 2.0,
    read: Callable[[amqp.Message], tuple[int, float]] = number_and_time,
) -> Arrivals:
    """Take the messages of the queues until all numbers are there and no more have come for ``quiet`` seconds.

    Gives up after ``seconds`` without a message.

    Reconnects when a connection is lost; only then may it take a message twice.
    """
    found, missing = Arrivals(), set(wanted)
    last, unacked = time.monotonic(), list[amqp.Message]()

    def take(message: amqp.Message) -> None:
        nonlocal last
        number, made = read(message)
        found.take(number, made, message)
        missing.discard(number)
        unacked.append(message)
        last = time.monotonic()

    def is_over() -> bool:
        return time.monotonic() - last > (seconds if missing else quiet)

    while not is_over():
        with contextlib.suppress(OSError, amqp.AMQPError), kombu.Connection(url) as connection:
            unacked.clear()
            channel = connection.channel()
            channel.basic_qos(0, 2 * WINDOW, False)
            for queue in queues:
                channel.basic_consume(queue, callback=take)
            while not is_over():
                with contextlib.suppress(socket.timeout):
                    while len(unacked) < WINDOW:
                        connection.drain_events(timeout=0.2)
                if unacked:  # not in the callback: there the timeout above would apply to writing, too
                    channel.basic_ack(unacked[-1].delivery_tag, multiple=True)
                    unacked.clear()
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def worker(url: str, log: Path, **settings: Any) -> Iterator[None]:
    """Run a worker of an app with these settings, which consumes a queue of its own: for loops, which need one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PARKING_BROKER": url, "PARKING_SETTINGS": repr(settings)}
    command = [sys.executable, "-m", "celery", "-A", "tests.support.brokers.parking_app", "worker", "--pool", "solo"]
    options = ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *options], stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        wait_for(lambda: "ready." in log.read_text() or process.poll() is not None, "a worker")
        assert process.poll() is None, log.read_text()[-4000:]
        yield
    finally:
        process.kill()
        process.wait()
