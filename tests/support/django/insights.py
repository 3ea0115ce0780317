"""A finished output of the analytics for the page *Insights*: the same seed gives the same figures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from math import exp, log
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from celery_rmq_delay.contrib.django.services.insight_tables import TABLES as SHOWN
from celery_rmq_delay.history.output import CURRENT, MANIFEST, REPORT, RUNS, Current, Manifest, folder_of, manifest_of
from celery_rmq_delay.history.schema import schema_of
from celery_rmq_delay.history.tables import BACKTEST_FIGURES, ENDS, FIGURES, TABLES

#: The columns as the pipeline writes them.
SCHEMAS = {table: schema_of(columns) for table, columns in TABLES.items() if table in SHOWN}

#: Task, queue, error, how many failed, seconds that the short and the long failures of it last, share of the long ones.
TASKS = (
    ("orders.tasks.charge", "payments", "httpx.ConnectTimeout", 8_412, 20.0, 1_500.0, 0.35),
    ("orders.tasks.send_receipt", "mail", "smtplib.SMTPServerDisconnected", 2_120, 60.0, 5_400.0, 0.5),
    ("catalogue.tasks.import_prices", "default", "ValueError", 37, 900.0, 86_400.0, 0.8),
)
TODAY = {
    "payments": [5_000, 30_000, 300_000], "mail": [60_000, 600_000, 3_600_000], "default": [10_000, 60_000],
    "reports": [30_000, 300_000],
}  # fmt: skip
BEST = {"payments": [15_000, 120_000, 1_800_000], "mail": [120_000, 900_000, 7_200_000]}

TOO_FEW = "not enough data: 37 retried failures, at least 200 are needed"
REFUSED = (
    "keep today's tiers: 2m 2m failed its backtest: on the last 412 failures, which the advice does not know, "
    "it breaks the limits"
)
LEARN = 'attempts at other times would show whether 2m 30m is better: set "jitter" of the queue to 0.2 for a week'

#: The run that writes all tables, unless a test names another.
RUN = "20260101T031700Z-0a1b2c3d"

Rows = list[dict[str, Any]]


def write(folder: Path, table: str, day: date, rows: Rows, schema: pa.Schema | None = None, *, run: str = RUN) -> Path:
    """Write rows of a table for a day, and publish them with all other days; return the file."""
    shown = Manifest()
    if (folder / CURRENT).exists():
        before = Current.parse((folder / CURRENT).read_text(), CURRENT)
        shown = Manifest.parse((folder / manifest_of(before.run)).read_text(), MANIFEST, before.run)
    path = folder / folder_of(run, table, day) / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema or SCHEMAS[table]), path)
    (folder / manifest_of(run)).write_text(shown.replaced(run, {table: ((day,), (day,))}).text())
    (folder / CURRENT).write_text(Current(run).text())
    return path


def finished(folder: Path, last: date, days: int = 7) -> Path:
    """Write a finished output of the shop, of some days; return the folder."""
    for back in range(days):
        day = last - timedelta(days=back)
        write(folder, "tier_outcomes", day, outcomes(days))
        write(folder, "hourly", day, hours(day, outage=back in (1, 4)))
        write(folder, "incidents", day, incidents(day) if back in (1, 4) else [])
    write(folder, "recovery_curve", last, [row for each in curves() for row in each])
    write(folder, "ladder_advice", last, ladders())
    write(folder, "exception_advice", last, exceptions())
    write(folder, "what_if", last, [{"queue": "payments", "enough_data": True, "episodes": 8_412, **what_if()}])
    report(folder, last, days)
    return folder


def report(folder: Path, last: date, days: int = 1, *, run: str = RUN, **more: Any) -> None:
    """Write the report of a run."""
    values = {
        "first_day": str(last - timedelta(days=days - 1)), "last_day": str(last),
        "output": "s3://key:secret@shop/insights", "rows_in": 91_204, "duplicates": 31,
        "quarantined": {"missing:task_id": 2}, **more,
    }  # fmt: skip
    (folder / RUNS / run / REPORT).write_text(json.dumps(values))


def folder(output: Path, table: str) -> Path:
    """Return the folder of a table."""
    return output / RUNS / RUN / table


def over(seconds: float, task: tuple[Any, ...]) -> float:
    """Return the share of a task's failures that are over by a time."""
    _name, _queue, _error, _count, short, long, share = task
    return 0.97 * (1 - (1 - share) * exp(-seconds / short) - share * exp(-seconds / long))


def curve(scope: str, name: str, task: tuple[Any, ...]) -> Rows:
    """Return a curve on a logarithmic grid, from a second to a week."""
    half = 1.96 * 0.5 / task[3] ** 0.5
    grid = [exp(log(604_800) * number / 290) for number in range(291)]
    shares = [(seconds, over(seconds, task)) for seconds in grid]
    return [
        {
            "scope": scope, "name": name, "t_seconds": seconds, "recovered_share": share,
            "share_low": max(0.0, share - half), "share_high": min(1.0, share + half),
            "episodes": task[3], "censored": task[3] // 20,
        }
        for seconds, share in shares
    ]  # fmt: skip


def curves() -> Iterable[Rows]:
    """Return the curves of all tasks and errors."""
    for task in TASKS:
        yield curve("task", task[0], task)
        yield curve("exception", task[2], task)


def outcomes(days: int) -> Rows:
    """Return a day's outcomes of all tiers."""
    rows = []
    for task in TASKS:
        waiting, passed = task[3] // days, 0.0
        for tier, delay in enumerate(TODAY[task[1]], 1):
            before, passed = passed, passed + delay / 1000
            good = round(waiting * (over(passed, task) - over(before, task)) / (1 - over(before, task)))
            last = tier == len(TODAY[task[1]])
            rows.append(
                {
                    "task": task[0], "queue": task[1], "exception_type": task[2], "tier": tier, "delay_ms": delay,
                    "parked": waiting, "recovered": good, "exhausted": waiting - good if last else 0,
                    "rate": good / max(1, waiting), "rate_low": 0.0, "rate_high": 1.0, "independent": waiting / 4,
                    "wasted_ms": 850 * (waiting - good),
                }
            )  # fmt: skip
            waiting -= good
    return rows


def hours(day: date, *, outage: bool = True) -> Rows:
    """Return the hours of a day of two queues, with the outage of `incidents`, or without."""
    start = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    rows = []
    for hour in range(24):
        for task in TASKS[:2]:
            failed = (13 * hour + 7 * day.day) % 40 + (300 if outage and hour == 9 else 0)
            rows.append(
                {
                    "hour": start + timedelta(hours=hour), "queue": task[1], "task": task[0], "first_attempts": 900,
                    "failures": failed, "parked": failed, "recovered": failed * 4 // 5, "exhausted": failed // 20,
                }
            )  # fmt: skip
    return rows


def incidents(day: date) -> Rows:
    """Return the outage of a morning."""
    start = datetime(day.year, day.month, day.day, 9, 4, tzinfo=timezone.utc)
    return [
        {
            "started_at": start, "ended_at": start + timedelta(minutes=47), "queues": ["mail", "payments"],
            "tasks": [task[0] for task in TASKS[:2]], "exceptions": ["httpx.ConnectTimeout"], "peak_per_minute": 212,
            "failures": 4_031, "excess": 1_871, "failure_rate": 0.96, "usual_rate": 0.012, "tasks_touched": 1_904,
            "recovered_share": 0.93, "wasted_ms": 5_431_000,
        }
    ]  # fmt: skip


def figures(prefix: str, recovery: float, attempts: float, median: float, p95: float) -> dict[str, float]:
    """Return the figures of a ladder with intervals of a few per cent."""
    times = (1.6 * median, 0.4 * median, median, 0.6 * p95, p95, 1.4 * p95)
    return {
        f"{prefix}{name}{end}": value * scale
        for name, value in zip(FIGURES, (recovery, attempts, *times, 1 - recovery), strict=True)
        for end, scale in zip(ENDS, (1, 0.97, 1.02), strict=True)
    }


def backtest(failures: int, current: tuple[float, ...], advised: tuple[float, ...]) -> dict[str, float]:
    """Return the result of today's and another ladder on the failures of the last days."""
    both = zip((current, advised), ("current", "advised"), strict=True)
    found = {
        f"backtest_{which}_{name}": value
        for values, which in both
        for name, value in zip(BACKTEST_FIGURES, values, strict=True)
    }
    return {"backtest_failures": failures, **found}


def ladders() -> Rows:
    """Return advice for two queues and a task, one that failed its backtest, and none for a fourth queue."""
    payments = {
        "queue": "payments", "reason": "today's ladder breaks the limits: at least 90.0% recovered",
        "enough_data": True, "episodes": 8_412, "recoveries": 7_003, "current_ms": TODAY["payments"],
        "counted": 8_102, **figures("current_", 0.83, 2.41, 35.0, 335.0),
        "model": "time", "by_attempts_low": 0.0, "by_attempts_high": 0.06,
    }  # fmt: skip
    best = {
        "advised_ms": BEST["payments"], **figures("advised_", 0.94, 2.11, 38.2, 1_935.0), "lost": 12,
        **backtest(412, (0.82, 2.4, 61.0, 335.0, 0.18), (0.95, 2.1, 58.0, 1_935.0, 0.05)),
    }  # fmt: skip
    mail = {
        "queue": "mail", "reason": "today's ladder is as good as any, as far as the history shows",
        "enough_data": True, "episodes": 2_120, "recoveries": 1_696, "current_ms": TODAY["mail"],
        "advised_ms": TODAY["mail"], "learn": LEARN, "by_attempts_low": 0.0, "by_attempts_high": 1.0,
        **figures("current_", 0.8, 2.7, 660.0, 4_260.0), **figures("advised_", 0.8, 2.7, 660.0, 4_260.0),
    }  # fmt: skip
    refused = {
        "queue": "reports", "reason": REFUSED, "enough_data": True, "episodes": 940, "recoveries": 846,
        "current_ms": TODAY["reports"], "refused_ms": [120_000, 120_000], "counted": 940,
        "model": "attempts", "by_attempts_low": 0.71, "by_attempts_high": 1.0,
        **figures("current_", 0.9, 1.4, 30.0, 330.0),
        **backtest(96, (0.91, 1.4, 40.0, 330.0, 0.09), (0.74, 1.3, 120.0, 240.0, 0.26)),
    }  # fmt: skip
    few = {"queue": "default", "enough_data": False, "reason": TOO_FEW, "episodes": 37}
    return [
        {**payments, **best},
        {**payments, **best, "task": "orders.tasks.charge", "advised_ms": [15_000, 120_000, 900_000], "lost": 0},
        mail,
        refused,
        {**few, "current_ms": TODAY["default"]},
    ]


def exceptions() -> Rows:
    """Return advice to give up on an exception, and that another one needs no long tier."""
    never = {
        "queue": "payments", "task": "orders.tasks.charge", "exception_type": "orders.errors.CardRefused",
        "kind": "give_up", "failures": 412, "recovered": 0, "share_low": 0.0, "share_high": 0.00924,
        "retries": 1_236, "wasted_ms": 7_560_000, "longest_s": 335.0,
    }  # fmt: skip
    always = {
        "queue": "mail", "task": "orders.tasks.send_receipt", "exception_type": "ConnectionResetError",
        "kind": "fewer_tiers", "failures": 512, "recovered": 512, "share_low": 0.99255, "share_high": 1.0,
        "longest_s": 40.2, "needless_ms": [3_600_000],
    }  # fmt: skip
    return [always, never]


def what_if() -> dict[str, Any]:
    """Return the figures of a named ladder."""
    return {"ladder_ms": [30_000, 300_000, 3_600_000], **figures("", 0.95, 2.05, 62.0, 3_930.0)}
