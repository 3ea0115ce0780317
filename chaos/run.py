"""Run a world with a load and a schedule of strikes, and return the verdict."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random

from chaos.book import open_book
from chaos.checker import Verdict, check
from chaos.evidence import Evidence, gather
from chaos.ledger import read
from chaos.schedule import Strike
from chaos.strikes import Fault
from chaos.world import World

#: Seconds between two checks of a run.
_PAUSE = 0.2


class Striker:
    """Carries out the strikes of a schedule, each in its own thread; those that touch the same part run in sequence."""

    def __init__(self, world: World, faults: Sequence[Fault], strikes: Sequence[Strike]) -> None:
        self._world = world
        self._faults = {fault.name: fault for fault in faults}
        self._strikes = list(strikes)
        self._parts = {part: threading.Lock() for fault in faults for part in fault.touches}
        self._over = threading.Event()
        self.done: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._carry_out, args=(strike,), name=strike.fault, daemon=True)
            for strike in self._strikes
        ]

    def start(self) -> None:
        """Start the clock of the schedule."""
        self._begun = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the strikes under way, and start no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _carry_out(self, strike: Strike) -> None:
        fault = self._faults[strike.fault]
        if self._over.wait(max(0.0, self._begun + strike.at - time.monotonic())):
            return
        with ExitStack() as held:
            for part in sorted(fault.touches):  # always in this order, so that there is no deadlock
                held.enter_context(self._parts[part])
            self.under_way[fault.name] += 1
            try:
                self._strike(fault, strike)
                self.done[fault.name] += 1
            except BaseException as error:  # noqa: BLE001 - the run ends with it
                self.error = error
            finally:
                self.under_way[fault.name] -= 1

    def _strike(self, fault: Fault, strike: Strike) -> None:
        since = time.monotonic()
        with fault.strike(self._world, Random(strike.dice)) as victims:
            self._over.wait(strike.lasts)
        until = time.monotonic()
        met = [(victims.effect or fault.effect, victims.pids), *([(fault.to_all, None)] if fault.to_all else [])]
        for effect, pids in met:
            self._world.ledger.note("strike", name=fault.name, effect=effect.value, since=since, until=until, pids=pids)


def run(
    world: World,
    faults: Sequence[Fault],
    strikes: Sequence[Strike],
    on_progress: Callable[[Striker], None] = lambda _: None,
) -> tuple[Verdict, Striker]:
    """Put the load on a started world, strike it, wait until no message is left; return the verdict.

    ``on_progress`` is called a few times a second. The evidence is in the world's folder as ``evidence.json``, for
    `judge`.
    """
    striker = Striker(world, faults, strikes)
    world.publish()
    striker.start()
    try:
        while world.is_publishing or not striker.is_done:
            for error in (striker.error, world.supervisor.error):
                if error is not None:
                    raise error
            on_progress(striker)
            time.sleep(_PAUSE)
    finally:
        striker.stop()
    if striker.error is not None:
        raise striker.error
    world.rest(lambda: on_progress(striker))
    world.close_books()
    gather(world).save(world.folder / "evidence.json")
    return judge(world.folder), striker


def judge(folder: Path) -> Verdict:
    """Return the verdict on the run of this folder."""
    return check(open_book(read(folder / "ledger")), Evidence.load(folder / "evidence.json"))
