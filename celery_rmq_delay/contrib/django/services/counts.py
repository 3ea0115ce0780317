"""Message counts of the broker's queues, by passive declares, cached for a few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import timezone

from ....amqp.apply import ready_counts
from ....app.inventory import plans
from ....exceptions import RmqDelayError
from ....operations.parked import Place, places
from ....operations.status import exact_status
from ..broker import BROKER_ERRORS, connection, delay
from ..conf import conf
from ..models import TaskRecord, TaskState
from ..queries import capped_counts

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
    delays. ``exhausted`` and ``events`` wait for the collector; None where the queue does not exist. ``counted_at`` is
    the time (UTC) of the last count that did not fail, None if there was none.
    """

    ok: bool
    error: str = ""
    tiers: tuple[TierCount, ...] = ()
    parked_by_queue: Mapping[str, int] = field(default_factory=dict)
    exact: int = 0
    exhausted: int | None = None
    events: int | None = None
    at: datetime = field(default_factory=timezone.now)
    counted_at: datetime | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the first count of this process is in progress."""
        return self is _PENDING

    @property
    def parked(self) -> int:
        """How many messages wait in all delay queues."""
        return sum(self.parked_by_queue.values()) + self.exact


_PENDING = BrokerCounts(ok=False)

#: Seconds for which the list of delay queues is cached. Reading it takes the locks of the ladders, which workers that
#: change a ladder need, too.
_PLACES_KEPT = 60.0

#: Seconds for which a failed count is cached: a broker that hangs delays one page in this time, not each page.
FAILED_KEPT = 30.0

#: Held by the thread that counts; the cache itself is replaced as a whole, so that reading it needs no lock.
_counting = threading.Lock()
_places: tuple[float, AppState, list[Place]] | None = None
#: When the last count began and ended, and its result.
_kept: tuple[float, float, BrokerCounts] | None = None
#: A count that began before this time does not show the effect of the last action.
_outdated = 0.0


def broker_counts(*, fresh: bool = False) -> BrokerCounts:
    """Return the last counts, or with ``fresh`` new ones. Never raises.

    The last counts are at most `BROKER_CACHE` seconds old, or `FAILED_KEPT` where the broker did not answer. One thread
    counts; meanwhile the others get the last counts, however old, and wait only with ``fresh``.
    """
    global _kept
    if not fresh and (kept := _current()) is not None:
        return kept
    if not _counting.acquire(blocking=fresh):
        return _kept[2] if _kept is not None else _PENDING
    try:
        if not fresh and (kept := _current()) is not None:  # another thread has counted in the meantime
            return kept
        began = time.monotonic()
        counts = _read()
        if not counts.ok and _kept is not None:
            counts = replace(counts, counted_at=_kept[2].counted_at)
        _kept = began, time.monotonic(), counts
        return counts
    finally:
        _counting.release()


def _current() -> BrokerCounts | None:
    if _kept is None:
        return None
    began, ended, counts = _kept
    age = conf().broker_cache if counts.ok else max(FAILED_KEPT, conf().broker_cache)
    return counts if began >= _outdated and time.monotonic() - ended <= age else None


def forget() -> None:
    """Let the next page count again, to show the effect of an action, or to retry where the broker did not answer."""
    global _outdated
    _outdated = time.monotonic()


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
        counted_at=timezone.now(),
    )


def _known_places(opened: Connection, ours: AppState) -> list[Place]:
    global _places
    if _places is None or _places[1] is not ours or time.monotonic() - _places[0] > _PLACES_KEPT:
        found = [place for plan in plans(opened, ours) for place in places(opened, plan)]
        _places = time.monotonic(), ours, found
    return _places[2]


#: More parked tasks are not counted: the counts are exact, and repeated.
MOST = 100_000
#: Tasks that are due so soon, or since so short a time, may be in their delay queue or not.
_EDGE = timedelta(minutes=1)


def parked_difference(counts: BrokerCounts, now: datetime) -> int | None:
    """Return by how many messages the delay queues hold more than the table, beyond what is in flight.

    In flight are tasks that are due about now, and events that wait for a collector. Exact delays and native retries
    are left out. None where the broker does not answer, or more than `MOST` tasks are parked.
    """
    if not counts.ok:
        return None
    waiting = TaskRecord.objects.filter(state=TaskState.PARKED).exclude(delay_queue="")
    later = waiting.filter(due_at__gt=now + _EDGE)
    about_now = waiting.filter(due_at__gt=now - _EDGE, due_at__lte=now + _EDGE)
    found = capped_counts(MOST, later=later, about_now=about_now)
    if any(each.is_more for each in found.values()):
        return None
    held, moving = counts.parked - counts.exact, counts.events or 0
    least, most = found["later"].number - moving, found["later"].number + found["about_now"].number + moving
    return held - most if held > most else min(0, held - least)
