"""The tables of the pipeline in plain Python, written from their definitions: the expected results of Spark.

Events are dicts with the columns of the history files. It is slow and short on purpose: one task, one day, one row at a
time, in the order in which things happened.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import Any, TypeVar

Row = dict[str, Any]
_Key = TypeVar("_Key", bound=Hashable)

ENDS = ("recovered", "exhausted", "discarded")
FAILED = ("parked", "exhausted")

#: Columns of an attempt that are those of its event.
COPIED = (
    *("task", "queue", "worker", "runtime_ms", "exception_type", "fingerprint", "exception_message", "reason"),
    *("ladder_ms", "max_retries"),
)

ATTEMPT_KEY = ("task_id", "generation", "attempt", "outcome")
EPISODE_KEY = ("task_id", "generation")
TIER_KEY = ("day", "task", "queue", "exception_type", "tier", "delay_ms")
INCIDENT_KEY = ("day", "started_at", "queues", "tasks", "exceptions")
GROUP_KEY = ("day", "fingerprint")
HOURLY_KEY = ("hour", "queue", "task")


def clean(rows: Iterable[Row], now: datetime) -> tuple[list[Row], Counter[str]]:
    """Return the events that tables count, and how many rows are bad by reason."""
    events: dict[tuple[str, str], Row] = {}
    bad: Counter[str] = Counter()
    for row in rows:
        if why := reason(row, now):
            bad[why] += 1
            continue
        key = (_name(row), row["event_id"])
        events[key] = min(row, events.get(key, row), key=_age)
    return list(events.values()), bad


def reason(row: Row, now: datetime) -> str | None:
    """Return the first reason for which a row is bad; None for a good one."""
    required = ("event_id", "kind", "occurred_at", "task", "queue", "worker", "generation", "attempt")
    for name in (*required, "crashes", "ladder_ms"):
        if row[name] is None:
            return f"missing:{name}"
    if row["kind"] == "rollup" and row["ok_count"] is None:
        return "missing:ok_count"
    if row["kind"] not in ("parked", "forwarded", "recovered", "exhausted", "discarded", "requeued", "rollup"):
        return "unknown_kind"
    if row["kind"] != "rollup" and row["task_id"] is None and row["reason"] != "undecodable":
        return "no_task_id"
    if row["occurred_at"] > now + timedelta(hours=1):
        return "from_the_future"
    counts = ("generation", "attempt", "max_retries", "tier", "delay_ms", "runtime_ms", "crashes", "ok_count")
    is_possible = all(0 <= value <= 10**12 for value in [*(row[name] or 0 for name in counts), *row["ladder_ms"]])
    return None if is_possible else "bad_count"


def attempts(events: Iterable[Row]) -> list[Row]:
    """Return the rows of `attempts`."""
    events = list(events)
    of_attempts = [event for event in events if event["kind"] not in ("rollup", "requeued")]
    cut = {(_name(each), each["generation"], each["attempt"]) for each in events if each["kind"] == "requeued"}
    found: list[Row] = []
    for (task_id, generation), some in _grouped(of_attempts, lambda event: (_name(event), event["generation"])).items():
        found += _attempts_of(
            task_id, generation, some, {number for *run, number in cut if run == [task_id, generation]}
        )
    return found


def _attempts_of(task_id: str, generation: int, events: list[Row], cut: set[int]) -> list[Row]:
    """Walk along the attempts of one task; after those in ``cut`` a person did not let it wait."""
    by_number = _grouped(events, lambda event: (event["attempt"], event["kind"] == "discarded"))
    steps = [(*key, _winner(some), _parked(some)) for key, some in sorted(by_number.items(), key=lambda pair: pair[0])]
    origin = _origin(steps)
    rows: list[Row] = []
    before: tuple[int, Row, Row | None] | None = None
    is_over, longest, low, failed, wasted, exception = False, None, 0.0, 0, 0, None
    waits: list[int] = []
    exact = 0
    for number, is_discard, event, parked in steps:
        outcome = _outcome(event)
        is_failed = outcome in FAILED
        previous = before is not None and before[0] == number - 1 and _outcome(before[1]) in FAILED
        seconds = None
        previous_seconds = longest if previous and not is_over else None
        if not is_over and not is_discard and origin is not None:
            started = event["occurred_at"] - timedelta(milliseconds=event["runtime_ms"] or 0)
            longest = max(longest or 0.0, (started - origin) / timedelta(microseconds=1) / 1e6)
            seconds = longest
        if is_failed and not is_over:
            failed += 1
            wasted += event["runtime_ms"] or 0
            exception = event["exception_type"] if exception is None else exception
            if event["reason"] not in ("expired", "unknown_task", "undecodable"):
                low = max(low, seconds or 0.0)
        episode = {
            "first_failed_at": origin,
            "exception_type": exception,
            "failed_attempts": failed,
            "wasted_ms": wasted,
            "low_seconds": low,
            "waited_ms": sum(waits) if 0 < number == len(waits) and not is_discard else None,
            "exact_waits": exact,
        }
        is_replay = generation > 0 and outcome == "recovered"
        has_episode = not is_over and (number > 0 or failed > 0 or is_replay)
        wait = (before and before[2]) or {} if previous else {}
        row = {
            "task_id": task_id,
            "generation": generation,
            "attempt": number,
            **{name: event[name] for name in COPIED},
            "outcome": outcome,
            "ended_at": event["occurred_at"],
            "tier": wait.get("tier"),
            "delay_ms": wait.get("delay_ms"),
            "previous_exception_type": before[1]["exception_type"] if before and previous else None,
            "t_seconds": seconds,
            "previous_t_seconds": previous_seconds,
            "episode": episode if has_episode else None,
            "day": event["occurred_at"].date(),
        }
        if not is_discard or has_episode:
            rows.append(row)
        if not is_discard:
            before = (number, event, parked)
            is_waited = parked is not None and parked["delay_ms"] is not None and number not in cut
            waits += [parked["delay_ms"]] if parked and is_waited else []
            exact += bool(parked and is_waited and parked["tier"] is None)
        is_over = is_over or outcome in ENDS
    return rows


def _winner(events: list[Row]) -> Row:
    """Return the event with the outcome of an attempt."""
    order = ["recovered", "exhausted", "parked", "discarded"]
    return min(events, key=lambda event: (order.index(_outcome(event)), *_age(event)))


def _parked(events: list[Row]) -> Row | None:
    return min((event for event in events if _outcome(event) == "parked"), key=_age, default=None)


def _origin(steps: Sequence[tuple[int, bool, Row, Row | None]]) -> datetime | None:
    """Return when the first failure was: the end of attempt 0, or the time in a later event."""
    for number, _, event, _ in steps:
        at: datetime | None = event["first_failed_at"]
        if at is None and number == 0 and _outcome(event) in FAILED:
            at = event["occurred_at"]
        if at is not None:
            return at
    return None


def _age(event: Row) -> tuple[Any, ...]:
    return event["occurred_at"], event["kind"], event["worker"], event["event_id"], event["reason"] or ""


def _outcome(event: Row) -> str:
    return "parked" if event["kind"] == "forwarded" else str(event["kind"])


def _name(event: Row) -> str:
    return str(event["task_id"] if event["task_id"] is not None else event["event_id"])


def episodes(found: Sequence[Row]) -> list[Row]:
    """Return the rows of `episodes`, open ones too, from those of `attempts`."""
    rows = []
    for (task_id, generation), some in _grouped(found, lambda row: (row["task_id"], row["generation"])).items():
        along = sorted(some, key=lambda row: (row["attempt"], row["outcome"] == "discarded"))
        end = next((row for row in along if row["outcome"] in ENDS and row["episode"]), None)
        last = end or (along[-1] if along[-1]["outcome"] == "parked" and along[-1]["episode"] else None)
        if last is None:
            continue
        rows.append(
            {
                "task_id": task_id,
                "generation": generation,
                **{name: last[name] for name in ("task", "queue", "reason", "ladder_ms", "max_retries", "day")},
                **last["episode"],
                "outcome": end["outcome"] if end else "open",
                "ended_at": end["ended_at"] if end else None,
                "high_seconds": last["t_seconds"] if last["outcome"] == "recovered" else None,
            }
        )
    return rows


def tier_outcomes(found: Sequence[Row]) -> list[Row]:
    """Return the rows of `tier_outcomes` from those of `attempts`."""

    def key(row: Row) -> tuple[Any, ...]:
        delay = row["delay_ms"]
        if row["tier"] is None:
            unit = 10 ** max(len(str(delay)) - 2, 0)
            delay -= delay % unit
        return row["day"], row["task"], row["queue"], row["previous_exception_type"], row["tier"], delay

    waited = [row for row in found if row["outcome"] != "discarded" and (row["tier"], row["delay_ms"]) != (None, None)]
    rows = []
    for group, some in _grouped(waited, key).items():
        tasks = _grouped(some, lambda row: (row["task_id"], row["generation"])).values()
        last = [max(each, key=lambda row: row["attempt"]) for each in tasks]
        recovered = _count(last, "recovered")
        ended = [max(row["ended_at"] for row in each) for each in tasks]
        trials = independent([row["outcome"] == "recovered" for row in last], ended)
        low, high = wilson(recovered / len(last) * trials, trials)
        rows.append(
            {
                **dict(zip(TIER_KEY, group, strict=True)),
                "parked": len(last),
                "recovered": recovered,
                "exhausted": _count(last, "exhausted"),
                "rate": recovered / len(last),
                "rate_low": low,
                "rate_high": high,
                "independent": trials,
                "wasted_ms": _wasted(some),
            }
        )
    return rows


def independent(recovered: Sequence[bool], ended: Sequence[datetime]) -> float:
    """Return how many independent tasks would vary as much as these, by the hours in which they ended."""
    hours: dict[float, list[bool]] = {}
    for good, at in zip(recovered, ended, strict=True):
        hours.setdefault(at.timestamp() // 3600, []).append(good)
    total, share = len(recovered), sum(recovered) / len(recovered)
    least = total**2 / sum(len(each) ** 2 for each in hours.values())
    spread = sum((sum(each) - share * len(each)) ** 2 for each in hours.values())
    if len(hours) < 10 or not spread or share in (0, 1):
        return least
    variance = spread / total**2 * len(hours) / (len(hours) - 1)
    return min(max(share * (1 - share) / variance, least), float(total))


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """Return the 95 % score interval of a share: Wilson (1927), Journal of the American Statistical Association 22."""
    z = 1.959963984540054
    share = successes / trials
    centre = share + z * z / (2 * trials)
    margin = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    below = 1 + z * z / trials
    return max(0.0, (centre - margin) / below), min(1.0, (centre + margin) / below)


def counts(found: Sequence[Row], events: Iterable[Row]) -> dict[date, list[Row]]:
    """Return by day the first attempts of it and of the two days before, as `of_day` needs them.

    Few enough that no fingerprint and no exception is too rare, or one too many.
    """
    firsts = [row for row in found if row["outcome"] in FAILED and row["attempt"] == 0]
    names = ("queue", "task", "exception_type", "fingerprint")
    of = {id(row): tuple(row[name] or "" for name in names) for row in firsts}
    ok = [event for event in events if event["kind"] == "rollup"]
    known = {row["day"] for row in firsts}
    result = {}
    for day, own in _grouped(firsts, lambda row: row["day"]).items():
        often = {source for source, count in Counter(of[id(row)] for row in own).items() if count >= 10}
        scopes = {of[id(row)][:3] for row in own}
        near = (day - timedelta(days=2), day - timedelta(days=1), day)
        rows: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
        for row in firsts:
            source = of[id(row)]
            if row["day"] in near and source[:3] in scopes:
                rows[(_minute(row["ended_at"]), *(source if source in often else (*source[:3], "")))][0] += 1
        for event in ok:
            source = event["queue"], event["task"]
            if event["occurred_at"].date() in {*near} & known and source in {scope[:2] for scope in scopes}:
                rows[(_minute(event["occurred_at"]), *source, "", "")][1] += event["ok_count"]
        result[day] = [
            dict(zip(("minute", *names, "failed", "ok"), (*key, *both), strict=True)) for key, both in rows.items()
        ]
    return result


def incident(found: Sequence[Row], one: Any) -> Row:
    """Return the row of `incidents` for an `Incident`."""

    def scope(row: Row) -> tuple[str, ...]:
        return row["queue"], row["task"], row["exception_type"] or ""

    inside = [
        row
        for row in found
        if row["outcome"] in FAILED and scope(row) in one.scope and one.first <= _minute(row["ended_at"]) <= one.last
    ]
    starts = sorted(row["ended_at"] for row in inside if row["attempt"] == 0 and _minute(row["ended_at"]) == one.first)
    day = date(1970, 1, 1) + timedelta(days=one.first // 1440)
    touched = {(row["task_id"], row["generation"]) for row in inside}
    ends: dict[tuple[str, int], set[str]] = defaultdict(set)
    for row in found:
        is_in_time = row["day"] <= day + timedelta(days=1)
        is_end = row["episode"] is not None and row["outcome"] in ENDS
        if is_in_time and is_end and (row["task_id"], row["generation"]) in touched:
            ends[row["task_id"], row["generation"]].add(row["outcome"])
    return {
        "day": day,
        "started_at": starts[one.skip] if len(starts) > one.skip else min(row["ended_at"] for row in inside),
        "ended_at": max(row["ended_at"] for row in inside),
        "queues": sorted({queue for queue, _, _ in one.scope}),
        "tasks": sorted({task for _, task, _ in one.scope}),
        "exceptions": sorted({exception for _, _, exception in one.scope} - {""}),
        "peak_per_minute": max(Counter(_minute(row["ended_at"]) for row in inside).values()),
        "failures": len(inside),
        "excess": round(one.failed - one.expected),
        "failure_rate": one.failed / one.attempts if one.attempts else None,
        "usual_rate": one.expected / one.attempts if one.attempts else None,
        "tasks_touched": len({task_id for task_id, _ in touched}),
        "recovered_share": sum("recovered" in outcomes for outcomes in ends.values()) / len(ends) if ends else None,
        "wasted_ms": _wasted(inside),
    }


def _minute(at: datetime) -> int:
    return int(at.timestamp() // 60)


def failure_groups(found: Sequence[Row]) -> list[Row]:
    """Return the rows of `failure_groups` from those of `attempts`."""
    failed = [row for row in found if row["outcome"] in FAILED and row["fingerprint"] is not None]
    rows = []
    for (day, fingerprint), some in _grouped(failed, lambda row: (row["day"], row["fingerprint"])).items():
        first_seen = min(row["ended_at"] for row in some)
        exception_type, message = min(
            ((row["exception_type"], row["exception_message"]) for row in some if row["ended_at"] == first_seen),
            key=lambda pair: [(text is not None, text) for text in pair],
        )
        rows.append(
            {
                "day": day,
                "fingerprint": fingerprint,
                "exception_type": exception_type,
                "exception_message": message,
                "tasks": sorted({row["task"] for row in some}),
                "failures": len(some),
                "tasks_touched": len({row["task_id"] for row in some}),
                "exhausted": _count(some, "exhausted"),
                "first_seen": first_seen,
                "last_seen": max(row["ended_at"] for row in some),
            }
        )
    return rows


def hourly(found: Sequence[Row], events: Iterable[Row]) -> list[Row]:
    """Return the rows of `hourly` from those of `attempts` and the rollups among the events."""
    names = ("first_attempts", "failures", "parked", "recovered", "exhausted")
    counts: dict[tuple[datetime, str, str], Row] = defaultdict(lambda: dict.fromkeys(names, 0))

    def of(at: datetime, row: Row) -> Row:
        return counts[at.replace(minute=0, second=0, microsecond=0), row["queue"], row["task"]]

    for row in found:
        if row["outcome"] == "discarded":
            continue
        here = of(row["ended_at"], row)
        is_failed = row["outcome"] in FAILED
        here["failures"] += is_failed
        here["first_attempts"] += is_failed and row["attempt"] == row["generation"] == 0
        if row["outcome"] in here:
            here[row["outcome"]] += 1
    for event in events:
        if event["kind"] == "rollup":
            of(event["occurred_at"], event)["first_attempts"] += event["ok_count"]
    return [
        {"hour": hour, "queue": queue, "task": task, **here, "day": hour.date()}
        for (hour, queue, task), here in counts.items()
    ]


def _count(rows: Iterable[Row], outcome: str) -> int:
    return sum(row["outcome"] == outcome for row in rows)


def _wasted(rows: Iterable[Row]) -> int:
    return sum(row["runtime_ms"] or 0 for row in rows if row["outcome"] in FAILED)


def _grouped(rows: Iterable[Row], key: Callable[[Row], _Key]) -> dict[_Key, list[Row]]:
    groups: dict[_Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
