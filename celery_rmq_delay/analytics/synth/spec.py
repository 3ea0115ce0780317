"""Specification of a synthetic history: how long failures last, the shop whose tasks fail, amounts of data. No I/O."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...exceptions import SettingsError

Floats: TypeAlias = npt.NDArray[np.float64]


class Distribution(Protocol):
    """The distribution of how long a dependency's failures last."""

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """Return ``count`` durations in seconds."""

    def over(self, seconds: Floats) -> Floats:
        """Return the share of failures that last at most this many seconds."""

    def describe(self) -> dict[str, object]:
        """Return name and parameters, for the truth."""


@dataclass(frozen=True)
class Exponential:
    """Failures that end at a constant rate."""

    mean_s: float

    def __post_init__(self) -> None:
        _check_positive(self)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """See `Distribution`."""
        return random.exponential(self.mean_s, count)

    def over(self, seconds: Floats) -> Floats:
        """See `Distribution`."""
        return -np.expm1(-seconds / self.mean_s)

    def describe(self) -> dict[str, object]:
        """See `Distribution`."""
        return {"name": "exponential", **asdict(self)}


@dataclass(frozen=True)
class Lognormal:
    """Failures of which half last at most ``median_s``, and some very long; ``sigma`` is the one of the logarithm."""

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        _check_positive(self)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """See `Distribution`."""
        return random.lognormal(math.log(self.median_s), self.sigma, count)

    def over(self, seconds: Floats) -> Floats:
        """See `Distribution`."""
        scale = self.sigma * math.sqrt(2)
        return np.array([0.5 * math.erfc(-math.log(t / self.median_s) / scale) if t > 0 else 0.0 for t in seconds])

    def describe(self) -> dict[str, object]:
        """See `Distribution`."""
        return {"name": "lognormal", **asdict(self)}


@dataclass(frozen=True)
class Mixture:
    """A ``share`` of the failures follows ``short``, the rest ``long``: blips and outages."""

    short: Distribution
    long: Distribution
    share: float

    def __post_init__(self) -> None:
        check_share("Mixture.share", self.share)

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """See `Distribution`."""
        is_short = random.random(count) < self.share
        return np.where(is_short, self.short.draw(random, count), self.long.draw(random, count))

    def over(self, seconds: Floats) -> Floats:
        """See `Distribution`."""
        return self.share * self.short.over(seconds) + (1 - self.share) * self.long.over(seconds)

    def describe(self) -> dict[str, object]:
        """See `Distribution`."""
        return {"name": "bimodal", "share": self.share, "short": self.short.describe(), "long": self.long.describe()}


def check_share(what: str, found: float) -> None:
    """Raise `SettingsError` if ``found`` is not a share."""
    if not 0 <= found <= 1:
        raise SettingsError(what, found, "It must be a share between 0 and 1.")


def _check_positive(distribution: Exponential | Lognormal) -> None:
    for name, found in asdict(distribution).items():
        if not 0 < found < math.inf:
            raise SettingsError(f"{type(distribution).__name__}.{name}", found, "It must be a positive, finite number.")


#: The distributions by their names on the command line.
NAMED: dict[str, Distribution] = {
    "exponential": Exponential(mean_s=120.0),
    "lognormal": Lognormal(median_s=90.0, sigma=1.2),
    "bimodal": Mixture(Lognormal(8.0, 0.5), Lognormal(900.0, 0.4), share=0.6),
}


#: ``shared``: a dependency is down for all its tasks at once. ``independent``: the failures of tasks are independent.
Outages = Literal["shared", "independent"]

#: Seconds that a task waits for a free worker after its delay: on average, and at most.
WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
#: An attempt runs at most this many times as long as the median.
LONGEST_RUNTIME = 20
#: Seconds after an attempt in which its event may be written a second time.
REPEATED_S = 60.0

_MAX_DAYS = 3_660
_DAY_S = 86_400


@dataclass(frozen=True)
class Dependency:
    """A service that is down at times, for ``lasting``; a share ``hard`` of its failures never recovers."""

    name: str
    lasting: Distribution
    exception_type: str
    message: str
    hard: float = 0.05
    #: Outages that begin per day, where they are shared.
    outages_per_day: float = 6.0

    def __post_init__(self) -> None:
        check_share(f"Dependency {self.name!r}, hard", self.hard)
        if not 0 < self.outages_per_day <= 1_000:
            hint = "Use a number above 0, up to 1,000."
            raise SettingsError(f"Dependency {self.name!r}, outages_per_day", self.outages_per_day, hint)


@dataclass(frozen=True)
class Queue:
    """A queue and its ladder in ms; ``later_ms`` applies to tasks that fail first in the second half."""

    name: str
    ladder_ms: tuple[int, ...]
    later_ms: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for ladder in self.ladders():
            if not 1 <= len(ladder) <= 20 or min(ladder) < 1:
                raise SettingsError(f"Queue {self.name!r}, ladder", ladder, "Give 1 to 20 delays of at least 1 ms.")

    def ladders(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ladder of the first and of the second half."""
        return self.ladder_ms, self.ladder_ms if self.later_ms is None else self.later_ms


@dataclass(frozen=True)
class Task:
    """A task; ``rate`` is how often it runs, relative to the others."""

    name: str
    queue: str
    dependency: str
    rate: float = 1.0
    #: Milliseconds that half of its attempts take at most.
    runtime_ms: int = 300

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise SettingsError(f"Task {self.name!r}, rate", self.rate, "It must be a positive number.")
        if self.runtime_ms < 1:
            raise SettingsError(f"Task {self.name!r}, runtime_ms", self.runtime_ms, "It must be at least 1 ms.")


@dataclass(frozen=True)
class Shop:
    """Queues, their tasks and the dependencies of the tasks."""

    dependencies: tuple[Dependency, ...]
    queues: tuple[Queue, ...]
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise SettingsError("Shop.tasks", self.tasks, "Give at least one task.")
        for what, known in (("queue", self.queues), ("dependency", self.dependencies), ("name", self.tasks)):
            names = [each.name for each in known]
            if len(set(names)) < len(names):
                raise SettingsError(f"Shop, {what}", names, "Give every name once.")
            for task in self.tasks:
                if getattr(task, what) not in names:
                    hint = f"The shop has: {', '.join(names) or 'none'}."
                    raise SettingsError(f"Task {task.name!r}, {what}", getattr(task, what), hint)

    @property
    def longest_ladder_s(self) -> float:
        """Return the seconds that the longest failure episode takes at most."""
        run = LONGEST_RUNTIME * max(task.runtime_ms for task in self.tasks) / 1000 + LONGEST_WAIT_S
        return max(sum(ladder) / 1000 + run * len(ladder) for queue in self.queues for ladder in queue.ladders())


_REFUSED = "HTTPSConnectionPool(host='payments', port=443): Max retries exceeded"
_DEPENDENCIES = (
    ("payments", "lognormal", ("requests.exceptions.ConnectionError", _REFUSED), 0.05, 8),
    ("mail", "exponential", ("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed"), 0.02, 12),
    ("warehouse", "bimodal", ("shop.errors.WarehouseBusy", "no answer from the warehouse after 30 s"), 0.1, 5),
)


def default_shop(distribution: Distribution | None = None, hard: float | None = None) -> Shop:
    """Return a shop of six tasks; ``distribution`` and ``hard`` override those of its three dependencies."""
    dependencies = (
        Dependency(name, distribution or NAMED[lasting], *error, usual if hard is None else hard, outages_per_day)
        for name, lasting, error, usual, outages_per_day in _DEPENDENCIES
    )
    return Shop(
        dependencies=tuple(dependencies),
        queues=(
            Queue("payments", (10_000, 60_000, 300_000, 1_800_000), (30_000, 300_000, 1_800_000, 3_600_000)),
            Queue("mail", (60_000, 300_000, 900_000)),
            Queue("stock", (5_000, 30_000, 120_000, 600_000, 3_600_000)),
        ),
        tasks=(
            Task("shop.tasks.charge", "payments", "payments", 3.0, 800),
            Task("shop.tasks.refund", "payments", "payments", 0.5, 900),
            Task("shop.tasks.send_receipt", "mail", "mail", 3.0, 150),
            Task("shop.tasks.send_newsletter", "mail", "mail", 1.0, 400),
            Task("shop.tasks.reserve", "stock", "warehouse", 2.0, 200),
            Task("shop.tasks.sync_prices", "stock", "warehouse", 0.3, 5_000),
        ),
    )


@dataclass(frozen=True)
class Spec:
    """A history for `write`. The same values produce the same rows.

    ``attempts`` counts failed and successful attempts of tasks that failed at least once; duplicates, bad rows, rollups
    and discards are additional. ``start`` is the first day (UTC). Shares are between 0 and 1: ``gave_up`` and
    ``poison`` of tasks, ``discarded`` of tasks that were to be retried, ``duplicates`` and ``late`` of events,
    ``rollups`` is rollups per attempt. Workers' clocks are wrong by up to ``skew_s`` seconds.
    """

    attempts: int = 1_000_000
    days: int = 30
    start: date = date(2026, 1, 1)
    seed: int = 1
    shop: Shop = field(default_factory=default_shop)
    outages: Outages = "shared"
    workers: int = 4
    skew_s: float = 0.2
    gave_up: float = 0.01
    poison: float = 0.002
    discarded: float = 0.005
    duplicates: float = 0.01
    late: float = 0.01
    rollups: float = 0.05
    bad_rows: int = 0
    bad_files: bool = False
    #: Most rows of a file, and attempts that are generated at once; they determine the memory.
    file_rows: int = 200_000
    chunk_attempts: int = 100_000

    def __post_init__(self) -> None:
        for name, least, most in (
            ("attempts", 1, 10_000_000_000),
            ("days", 1, _MAX_DAYS),
            ("seed", 0, 2**63 - 1),
            ("workers", 1, 10_000),
            ("bad_rows", 0, 1_000_000),
            ("file_rows", 1, 10_000_000),
            ("chunk_attempts", 100, 2_000_000),
        ):
            found = getattr(self, name)
            if type(found) is not int or not least <= found <= most:
                raise SettingsError(f"Spec.{name}", found, f"Use a whole number from {least:,} to {most:,}.")
        for name in ("gave_up", "poison", "discarded", "duplicates", "late", "rollups"):
            check_share(f"Spec.{name}", getattr(self, name))
        if self.gave_up + self.poison > 1:
            raise SettingsError("Spec.gave_up + Spec.poison", self.gave_up + self.poison, "Together at most 1.")
        if not 0 <= self.skew_s <= 3_600:
            raise SettingsError("Spec.skew_s", self.skew_s, "Use seconds from 0 to 3,600.")
        if self.outages not in ("shared", "independent"):
            raise SettingsError("Spec.outages", self.outages, 'Use "shared" or "independent".')
        if self.span_s < _DAY_S / 4:
            hint = f"The longest ladder takes {self.shop.longest_ladder_s:,.0f} s: use more days or shorter ladders."
            raise SettingsError("Spec.days", self.days, hint)

    @property
    def span_s(self) -> float:
        """Return the seconds from the start in which tasks fail first, so that all end within the days."""
        return self.days * _DAY_S - self.shop.longest_ladder_s - 2 * self.skew_s - REPEATED_S

    def describe(self) -> dict[str, object]:
        """Return all values, for the truth."""
        found = asdict(self) | {"start": self.start.isoformat()}
        for described, known in zip(found["shop"]["dependencies"], self.shop.dependencies, strict=True):
            described["lasting"] = known.lasting.describe()
        return found
