"""Message counts of the broker's queues, by passive declares, cached for a few seconds. Never raises."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils import timezone

from ....amqp.apply import ready_counts
from ....app.inventory import plans
from ....exceptions import RmqDelayError
from ....operations.exact_delays import exact_status
from ....operations.release import Place, places
from ..broker import connection, delay
from ..conf import conf
from .operations.link import BROKER_ERRORS

if TYPE_CHECKING:
    from kombu import Connection

    from ....app.state import AppState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TierCount:
    """How many messages wait in one tier of an origin queue; ``delay_ms`` is the tier's delay in ms."""

    queue: str
    tier: int
    delay_ms: int
    parked: int


@dataclass(frozen=True)
class BrokerCounts:
    """Counts of messages at ``at`` (UTC); where ``ok`` is false there are none, and ``error`` has the reason.

    ``tiers`` has every tier of every origin queue, ``parked_by_queue`` their sums, ``exact`` the messages with exact
    delays. ``exhausted`` and ``events`` wait for the collector; None where the queue does not exist.
    """

    ok: bool
    error: str = ""
    tiers: tuple[TierCount, ...] = ()
    parked_by_queue: Mapping[str, int] = field(default_factory=dict)
    exact: int = 0
    exhausted: int | None = None
    events: int | None = None
    at: datetime = field(default_factory=timezone.now)

    @property
    def parked(self) -> int:
        """How many messages wait in all delay queues."""
        return sum(self.parked_by_queue.values()) + self.exact


#: Seconds for which the list of delay queues is cached. Reading it takes the locks of the ladders, which workers that
#: change a ladder need, too.
_PLACES_KEPT = 60.0

_lock = threading.Lock()
_places: tuple[float, AppState, list[Place]] | None = None
_kept: tuple[float, BrokerCounts] | None = None


def broker_counts(*, fresh: bool = False) -> BrokerCounts:
    """Return counts that are at most `BROKER_CACHE` seconds old, or with ``fresh`` new ones. Never raises.

    One thread counts and the others wait for it: an unreachable broker delays each page at most once.
    """
    global _kept
    with _lock:
        now = time.monotonic()
        if fresh or _kept is None or now - _kept[0] > conf().broker_cache:
            counts = _read()
            _kept = time.monotonic(), counts
        return _kept[1]


def forget() -> None:
    """Clear the cache of counts, so that the next page shows the effect of an action."""
    global _kept
    with _lock:
        _kept = None


def _read() -> BrokerCounts:
    try:
        with connection() as opened:
            return _counted(opened)
    except (RmqDelayError, *BROKER_ERRORS) as error:
        return BrokerCounts(ok=False, error=" ".join(str(error).split()) or type(error).__name__)
    except Exception as error:
        logger.exception("The broker's queues could not be counted")
        return BrokerCounts(ok=False, error=type(error).__name__)  # its text may contain parts of the URL


def _counted(opened: Connection) -> BrokerCounts:
    ours = delay()
    found = _known_places(opened, ours)
    exhausted, events = ours.settings.exhausted_queue, ours.settings.names.events
    counts = ready_counts(opened, [*(place.queue for place in found), exhausted, events])
    tiers: dict[tuple[str, int, int], int] = {}
    for place in found:
        key = place.plan.queue, place.tier_index, place.delay_ms
        tiers[key] = tiers.get(key, 0) + (counts[place.queue] or 0)
    by_queue: dict[str, int] = {}
    for (queue, _tier, _delay_ms), parked in tiers.items():
        by_queue[queue] = by_queue.get(queue, 0) + parked
    return BrokerCounts(
        ok=True,
        tiers=tuple(TierCount(*key, parked) for key, parked in sorted(tiers.items())),
        parked_by_queue=by_queue,
        exact=sum(each.waiting or 0 for each in exact_status(opened, ours.exact)),
        exhausted=counts[exhausted],
        events=counts[events],
    )


def _known_places(opened: Connection, ours: AppState) -> list[Place]:
    global _places
    if _places is None or _places[1] is not ours or time.monotonic() - _places[0] > _PLACES_KEPT:
        found = [place for plan in plans(opened, ours) for place in places(opened, plan)]
        _places = time.monotonic(), ours, found
    return _places[2]
