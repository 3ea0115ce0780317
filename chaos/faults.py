"""The faults of a system with one RabbitMQ node."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from random import Random

from chaos import clock
from chaos.operators import (
    broad_policy,
    change_ladders,
    change_queue_type,
    lose_records,
    restart_in_alarm,
    restart_worker,
    upgrade_workers,
)
from chaos.processes import Supervised, running
from chaos.strikes import Effect, Fault, Victims
from chaos.world import World
from tests.support.brokers import alarms
from tests.support.brokers.proxy import Proxy
from tests.support.waiting import wait_for

# -- processes ---------------------------------------------------------------------------------------------------------


def kill(pids: Sequence[int]) -> None:
    """End processes with SIGKILL; ignore those that have already ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def kill_child(world: World, dice: Random) -> Iterator[Victims]:
    """Kill one process of a worker's pool."""
    children = wait_for(lambda: running(world.workers, dice).children(), "a process of a pool")
    victims = Victims([dice.choice(children)])
    kill(victims.pids or ())
    yield victims


@contextmanager
def kill_worker(world: World, dice: Random) -> Iterator[Victims]:
    """Kill a worker's main process, after which the kernel kills its children; or all of them, the children first."""
    pids = running(world.workers, dice).pids()
    kill(pids[:1] if dice.random() < 0.5 else pids[::-1])
    yield Victims(pids)


@contextmanager
def kill_collector(world: World, _dice: Random) -> Iterator[Victims]:
    """Kill the collector."""
    kill(world.collector.pids())
    yield Victims()


@contextmanager
def kill_publisher(world: World, dice: Random) -> Iterator[Victims]:
    """Kill a publisher, if any is running."""
    if world.is_publishing:
        kill(dice.choice([each for each in world.publishers if each.wanted]).pids())
    yield Victims()


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def restart_broker(world: World, _dice: Random) -> Iterator[Victims]:
    """Shut the broker down gracefully, and start it again."""
    world.nodes[0].restart()
    world.tune()
    yield Victims(None)


def _alarm(resource: str) -> object:
    @contextmanager
    def alarm(world: World, _dice: Random) -> Iterator[Victims]:
        with alarms.alarm(world.nodes[0], resource):
            yield Victims(None)

    return alarm


@contextmanager
def redis_down(world: World, _dice: Random) -> Iterator[Victims]:
    """Kill Redis, and start it again, empty."""
    world.redis.kill()
    try:
        yield Victims(None)
    finally:
        world.redis.start()


@contextmanager
def postgres_down(world: World, dice: Random) -> Iterator[Victims]:
    """Kill PostgreSQL, or shut it down; then start it again."""
    if dice.random() < 0.5:
        world.postgres.kill()
    else:
        world.postgres.stop()
    try:
        yield Victims()
    finally:
        world.postgres.start()


# -- the network -------------------------------------------------------------------------------------------------------


def client(world: World, dice: Random) -> Supervised:
    """Return a running client of the broker, usually a worker."""
    others = [world.collector, *world.publishers]
    return running(world.workers if dice.random() < 0.7 else [each for each in others if each.wanted], dice)


@contextmanager
def cut_connections(world: World, dice: Random) -> Iterator[Victims]:
    """Cut all connections of a client."""
    chosen = client(world, dice)
    victims = Victims(chosen.pids())
    for proxy in world.link(chosen.name).proxies:
        proxy.cut()
    yield victims


@contextmanager
def _held_up(
    chosen: Supervised, proxies: Sequence[Proxy], begin: Callable[[Proxy], None], end: Callable[[Proxy], None]
) -> Iterator[Victims]:
    """Apply an action to the proxies of a client, and undo it at the end; it may have been restarted meanwhile."""
    victims = Victims(chosen.pids())
    for proxy in proxies:
        begin(proxy)
    try:
        yield victims
    finally:
        for proxy in proxies:
            end(proxy)
        victims.pids = [*(victims.pids or ()), *chosen.pids()]


def half_open(world: World, dice: Random) -> AbstractContextManager[Victims]:
    """Silence the connections of a client without closing them; new ones work. Cut the old ones at the end."""
    chosen = client(world, dice)
    return _held_up(chosen, world.link(chosen.name).proxies, Proxy.hold, Proxy.cut)


def fail_over(world: World, dice: Random) -> AbstractContextManager[Victims]:
    """Let a client reach only the last of its URLs: the others, including the one in use, refuse connections."""
    chosen = client(world, dice)
    return _held_up(chosen, world.link(chosen.name).in_order()[:-1], Proxy.refuse, Proxy.admit)


@contextmanager
def slow_network(world: World, dice: Random) -> Iterator[Victims]:
    """Delay all data to and from the broker, with a low bandwidth."""
    latency = dice.uniform(0.02, 0.2)
    proxies = [proxy for link in world.links.values() for proxy in link.proxies]
    for proxy in proxies:
        proxy.slow(latency, bytes_per_second=dice.uniform(50_000, 500_000))
    try:
        yield Victims(None)
    finally:
        for proxy in proxies:
            proxy.slow(0)


# -- the clock ---------------------------------------------------------------------------------------------------------


@contextmanager
def step_clock(world: World, dice: Random) -> Iterator[Victims]:
    """Step the clock of a worker forward or back, and correct it at the end."""
    clock.step(world.clock, dice.choice((-1, 1)) * dice.choice((5, 600, 90_000)))
    try:
        yield Victims()
    finally:
        clock.step(world.clock, 0)


WORKERS, BROKER, REDIS, POSTGRES = "the workers", "the broker", "Redis", "PostgreSQL"
COLLECTOR, PUBLISHERS, NETWORK, CLOCK = "the collector", "the publishers", "the network", "the clock"


_ALL = (WORKERS, BROKER, COLLECTOR, PUBLISHERS, NETWORK)


def _fault(name: str, strike: object, effect: Effect, *touches: str, **more: object) -> Fault:
    return Fault(name, strike, effect, touches=frozenset(touches), **more)  # type: ignore[arg-type]


_PROCESSES = (
    _fault("kill a pool process", kill_child, Effect.CHILD, WORKERS),
    _fault("kill a worker", kill_worker, Effect.WORKER, WORKERS),
    _fault("kill the collector", kill_collector, Effect.NONE, COLLECTOR),
    _fault("kill a publisher", kill_publisher, Effect.NONE, PUBLISHERS),
)
_OPERATORS = (
    _fault("restart a worker", restart_worker, Effect.ORDERLY, WORKERS, takes=6.0),
    _fault(
        "restart in an alarm",
        restart_in_alarm,
        Effect.ORDERLY,
        WORKERS,
        BROKER,
        lasts=(1.0, 5.0),
        takes=6.0,
        to_all=Effect.ALARM,
    ),
    _fault("upgrade the workers", upgrade_workers, Effect.ORDERLY, WORKERS, takes=12.0),
    _fault("change the ladders", change_ladders, Effect.WORKER, WORKERS, takes=12.0),
    _fault("lose the records", lose_records, Effect.ORDERLY, WORKERS, BROKER, NETWORK, takes=20.0),
    _fault("broad policy", broad_policy, Effect.NONE, BROKER, lasts=(2.0, 6.0), takes=6.0),
    _fault("change a queue's type", change_queue_type, Effect.GONE, *_ALL, takes=25.0),
)
_SERVERS = (
    _fault("restart the broker", restart_broker, Effect.BROKER, BROKER, takes=10.0),
    _fault("memory alarm", _alarm("memory"), Effect.ALARM, BROKER, lasts=(1.0, 5.0)),
    _fault("disk alarm", _alarm("disk"), Effect.ALARM, BROKER, lasts=(1.0, 5.0)),
    _fault("Redis down", redis_down, Effect.RESULTS, REDIS, lasts=(1.0, 6.0)),
    _fault("PostgreSQL down", postgres_down, Effect.NONE, POSTGRES, lasts=(1.0, 6.0), takes=3.0),
)
_NETWORK = (
    _fault("cut connections", cut_connections, Effect.CONNECTION, NETWORK),
    _fault("half-open connections", half_open, Effect.CONNECTION, NETWORK, lasts=(2.0, 12.0)),
    _fault("fail over", fail_over, Effect.CONNECTION, NETWORK, lasts=(2.0, 10.0)),
    _fault("slow network", slow_network, Effect.STALL, NETWORK, lasts=(3.0, 10.0)),
)
_CLOCK = (_fault("clock step", step_clock, Effect.NONE, CLOCK, lasts=(2.0, 8.0)),)

#: The clock is stepped only if libfaketime is installed.
FAULTS: tuple[Fault, ...] = (*_PROCESSES, *_OPERATORS, *_SERVERS, *_NETWORK, *(_CLOCK if clock.library() else ()))
