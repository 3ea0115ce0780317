"""Actions of operators on a broker and its workers: deploys, policies, purges, a change of queue type."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import amqp

from chaos.plans import QUEUES
from chaos.processes import Supervised, environment, running
from chaos.project import ladders
from chaos.strikes import Effect, Victims
from chaos.world import World
from tests.support.brokers import alarms
from tests.support.waiting import wait_for

_MANAGED = r"^(rmq_delay\..*|.*\.retry\.[0-9]+\..*|.*\.quarantine)$"
#: By name: pattern, definition, and priority. The first keeps the second from the managed queues.
_POLICIES = {
    "rmq-delay-own": (_MANAGED, {"message-ttl": 2**32 - 1}, 9),
    "broad": (rf"^(?!({'|'.join(QUEUES)})$)", {"message-ttl": 1, "max-length": 1, "expires": 1000}, 0),
}


def _replace(world: World, worker: Supervised) -> Victims:
    """Shut a worker down gracefully, or kill it if that fails, and start it with the present settings."""
    pids = worker.pids()
    in_order = worker.change(world.config(worker.name).environ())
    world.await_worker(worker)
    return Victims(pids, None if in_order else Effect.WORKER)


@contextmanager
def restart_worker(world: World, dice: Random) -> Iterator[Victims]:
    """Restart a worker gracefully."""
    yield _replace(world, running(world.workers, dice))


@contextmanager
def restart_in_alarm(world: World, dice: Random) -> Iterator[Victims]:
    """Restart a worker in a memory alarm, in which nothing can be published: its messages are redelivered."""
    worker = running(world.workers, dice)
    with alarms.alarm(dice.choice(world.nodes)):
        yield _replace(world, worker)


def roll(world: World, version: int) -> Victims:
    """Replace all workers gracefully: start a new one beside the old ones, then replace one after the other."""
    world.begin_ladder(version)
    extra = world.add_worker()
    world.await_workers()
    met = [_replace(world, worker) for worker in world.workers[:-1]]
    pids = extra.pids()
    world.workers.remove(extra)
    met.append(Victims(pids, None if extra.retire() else Effect.WORKER))
    world.end_ladders()
    killed = [pid for each in met if each.effect for pid in each.pids or ()]
    return Victims(killed, Effect.WORKER) if killed else Victims([pid for each in met for pid in each.pids or ()])


@contextmanager
def upgrade_workers(world: World, _dice: Random) -> Iterator[Victims]:
    """Replace all workers, with the same settings."""
    yield roll(world, world.version)


def _next_version(world: World) -> int:
    return (world.version + 1) % len(ladders(world.load.unit))


@contextmanager
def change_ladders(world: World, _dice: Random) -> Iterator[Victims]:
    """Replace all workers, with other tiers; each may receive messages between two ladders."""
    roll(world, _next_version(world))
    yield Victims(None)


@contextmanager
def lose_records(world: World, _dice: Random) -> Iterator[Victims]:
    """Purge the records of the ladders in force: workers with other ladders must not start, those with these may.

    Running workers may reconnect and write the records again, so they are shut down gracefully first.
    """
    pids = [pid for worker in world.workers for pid in worker.pids()]
    in_order = world.retire_workers()
    with _channel(world) as channel:
        for queue in QUEUES:
            record = f"rmq_delay.{queue}.record"
            wait_for(lambda record=record: channel.queue_purge(record), "the record, which a reader may hold")
    intruder = world.add_worker(_next_version(world))
    world.workers.remove(intruder)
    wait_for(lambda: intruder.starts > 1, "a worker with other ladders is refused", 120)
    intruder.retire()
    assert "The record of the ladder of queue" in (world.folder / f"{intruder.name}.log").read_text()
    _start(world)
    yield Victims(pids, None if in_order else Effect.WORKER)


def _start(world: World) -> None:
    """Restart the retired workers."""
    for worker in world.workers:
        worker.change({})
    world.await_workers()


@contextmanager
def broad_policy(world: World, _dice: Random) -> Iterator[Victims]:
    """Set a policy that would remove all messages from all queues except the origin queues, below one that prevents it.

    The preventing policy is the one that the doctor advises.
    """
    node = world.living_node
    with ExitStack() as policies:
        for name, (pattern, definition, priority) in _POLICIES.items():
            arguments = [name, pattern, json.dumps(definition), "--apply-to", "queues", "--priority", str(priority)]
            node.rabbitmqctl("set_policy", *arguments)
            policies.callback(node.rabbitmqctl, "clear_policy", name)
        yield Victims()


@contextmanager
def change_queue_type(world: World, _dice: Random) -> Iterator[Victims]:
    """Declare an origin queue again with the other type, following the documentation, while tasks are parked.

    Tasks that return after the workers have ended, and those due before the ladder is applied, are exhausted.
    """
    queue = QUEUES[0]
    publishers = [each for each in world.publishers if each.wanted]
    for publisher in publishers:
        publisher.retire()
    wait_for(lambda: not world.queues()[f"{queue}.quarantine"], "no quarantined tasks", 60, pause=0.3)
    world.retire_workers()
    _rmq_delay(world, "delete-queue", "--no-management", queue).check_returncode()
    world.queue_types[queue] = "classic" if world.queue_types[queue] == "quorum" else "quorum"
    _rmq_delay(world, "apply").check_returncode()
    yield Victims(None)
    for process in (*world.workers, *publishers):
        process.change(world.config(process.name).environ())
    world.await_workers()


def _rmq_delay(world: World, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "chaos.worker", "rmq-delay", *arguments],
        env=environment(**world.config("apply").environ()),
        capture_output=True,
    )


@contextmanager
def _channel(world: World) -> Iterator[amqp.Channel]:
    with amqp.Connection(f"127.0.0.1:{world.living_node.port}", "guest", "guest") as connection:
        yield connection.channel()
