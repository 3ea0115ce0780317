"""The task of every contender: the same payload, the same failure, the same record of its attempts."""

from __future__ import annotations

import json
import os
import time
from typing import Any, NoReturn

from benchmarks.attempts import LEDGER_SIZE, AttemptLog, Ledger

#: Set by the runner for the publisher and the worker of one run.
BROKER_URL = os.environ["BENCHMARK_BROKER_URL"]
QUEUE_TYPE = os.environ["BENCHMARK_QUEUE_TYPE"]
MODE = os.environ["BENCHMARK_MODE"]
DELAY = int(os.environ["BENCHMARK_DELAY"])
LOG_LEVEL = os.environ["BENCHMARK_LOG_LEVEL"]

ORDER = {"customer": 4711, "lines": [{"sku": "A-100", "count": 2}, {"sku": "B-7", "count": 1}], "note": "x" * 100}

#: How many attempts of a task fail before it succeeds, 0: all; and the seconds that an attempt sleeps.
FAILURES = int(os.environ["BENCHMARK_FAILURES"])
WORK = float(os.environ["BENCHMARK_WORK"])
#: Tasks from this number on succeed at once.
FRESH = LEDGER_SIZE

WITH_TIMES = os.environ["BENCHMARK_TIMES"] == "1"
_log = AttemptLog(os.environ["BENCHMARK_DIR"], with_times=WITH_TIMES)
_ledger = Ledger(os.environ["BENCHMARK_DIR"]) if FAILURES else None


class GatewayError(Exception):
    """The payment gateway is down."""


def succeed(number: int, order: dict[str, Any]) -> None:
    """Do a little work, like the failing task before it fails."""
    started = time.monotonic()
    json.dumps(order)
    _log.add(number, started)


def fail(number: int, order: dict[str, Any]) -> None:
    """Do a little work and fail, three calls deep; succeed after enough failures."""
    if attempt(number, order):
        _charge(number)


def attempt(number: int, order: dict[str, Any]) -> bool:
    """Do a little work and record the attempt; return whether it must fail."""
    started = time.monotonic()
    json.dumps(order)
    if WORK:
        time.sleep(WORK)
    _log.add(number, started)
    if number >= FRESH:
        return False
    if _ledger is None:
        return True
    done = _ledger.of(number)
    _ledger.add(number)
    return done < FAILURES


def _charge(number: int) -> NoReturn:
    _post(f"/charges/{number}")


def _post(path: str) -> NoReturn:
    raise GatewayError(f"503 from {path}")
