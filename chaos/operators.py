"""What people do to a broker and its workers: deploys, policies, purges, another type of queue."""

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

_OWN = r"^(rmq_delay\..*|.*\.retry\.[0-9]+\..*|.*\.quarantine)$"
#: By name: what they apply to, what they say, and their priority. The second keeps the first from our own queues.
_POLICIES = {
    "rmq-delay-own": (_OWN, {"message-ttl": 2**32 - 1}, 9),
    "broad": (rf"^(?!({'|'.join(QUEUES)})$)", {"message-ttl": 1, "max-length": 1, "expires": 1000}, 0),
}


def _replace(world: World, worker: Supervised) -> Victims:
    """End a worker in good order, and start it with the settings of now; it may have to be killed after all."""
    pids = worker.pids()
    in_order = worker.change(world.config(worker.name).environ())
    world.await_worker(worker)
    return Victims(pids, None if in_order else Effect.WORKER)


@contextmanager
def restart_worker(world: World, dice: Random) -> Iterator[Victims]:
    """Restart a worker in good order."""
    yield _replace(world, running(world.workers, dice))


@contextmanager
def restart_in_alarm(world: World, dice: Random) -> Iterator[Victims]:
    """Restart a worker in a memory alarm, in which nothing can be published: what it held is delivered again."""
    worker = running(world.workers, dice)
    with alarms.alarm(dice.choice(world.nodes)):
        yield _replace(world, worker)


def roll(world: World, version: int) -> Victims:
    """Replace all workers: one new beside the old ones at first, then one after the other, in good order."""
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
    """Replace all workers by such with the same settings."""
    yield roll(world, world.version)


def _next_version(world: World) -> int:
    return (world.version + 1) % len(ladders(world.load.unit))


@contextmanager
def change_ladders(world: World, _dice: Random) -> Iterator[Victims]:
    """Replace all workers by such with other tiers; any of them may meet a message between two ladders."""
    roll(world, _next_version(world))
    yield Victims(None)


@contextmanager
def lose_records(world: World, _dice: Random) -> Iterator[Victims]:
    """Purge what says which ladders are in force: no worker with other ones may start, and those with these may.

    While they run, any of them may connect again and write it anew, so they are ended, in good order.
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
    """Start the workers again that have been retired."""
    for worker in world.workers:
        worker.change({})
    world.await_workers()


@contextmanager
def broad_policy(world: World, _dice: Random) -> Iterator[Victims]:
    """Set a policy that would take all messages from all queues but the origin queues, beneath one that protects them.

    The one that the doctor advises.
    """
    node = world.living_node
    with ExitStack() as policies:
        for name, (pattern, definition, priority) in _POLICIES.items():
            said = [name, pattern, json.dumps(definition), "--apply-to", "queues", "--priority", str(priority)]
            node.rabbitmqctl("set_policy", *said)
            policies.callback(node.rabbitmqctl, "clear_policy", name)
        yield Victims()


@contextmanager
def change_queue_type(world: World, _dice: Random) -> Iterator[Victims]:
    """Declare an origin queue again as the other type, in the steps of the documentation, while tasks are parked.

    What has come back when its workers are gone, and what is due before the ladder is applied, is exhausted.
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
