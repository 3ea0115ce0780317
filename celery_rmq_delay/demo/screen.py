"""The text of the demo: a table that is drawn again in a terminal, otherwise a line per change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

from ..durations import format_ms
from ..operations.status import TierStatus
from ..tables import table
from .orders import ORDERS, TIERS
from .watch import Seen


class Screen:
    """Shows states on ``out``."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out, self._shown, self._lines = out, "", 0

    def show(self, seen: Seen, seconds: float) -> None:
        """Show a state, ``seconds`` after the tasks were published."""
        if not self._out.isatty():
            if (text := line(seen)) != self._shown:
                self._write(f"{seconds:4.1f} s  {text}\n")
            self._shown = text
            return
        lines = [f"{seconds:4.1f} s   Ctrl-C ends the demo", *picture(seen).splitlines()]
        up = f"\x1b[{self._lines}A" if self._lines else ""
        self._write(up + "".join(f"\x1b[2K{each}\n" for each in lines))
        self._lines = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def picture(seen: Seen, now: datetime | None = None) -> str:
    """Return the table of a state."""
    now = now or datetime.now(timezone.utc)
    tiers = [(f"parked, tier {tier.tier_index} ({format_ms(tier.delay_ms)})", tier.parked, due(tier, now))
             for tier in seen.tiers]  # fmt: skip
    rows = [
        ("held by the worker", seen.held, f"{seen.running or 0} running"),
        ("waiting for the worker", seen.queued, ""),
        *tiers,
        ("succeeded at once", seen.at_once, ""),
        ("recovered", seen.recovered, ""),
        ("exhausted", seen.exhausted, ""),
    ]
    return table(("", "TASKS", ""), rows)


def due(tier: TierStatus, now: datetime) -> str:
    """Return when the next task of a tier is due."""
    if not tier.parked:
        return ""
    if tier.oldest_due is None:
        return f"next due within {format_ms(tier.due_within_ms or tier.delay_ms)}"
    return f"next due in {max(0.0, (tier.oldest_due - now).total_seconds()):.0f} s"


def line(seen: Seen) -> str:
    """Return a state in one line, without times."""
    tiers = " + ".join(str(tier.parked) for tier in seen.tiers)
    held = "?" if seen.held is None else seen.held
    return (
        f"worker holds {held}, queued {seen.queued}, parked {tiers}, "
        f"succeeded {seen.at_once}, recovered {seen.recovered}, exhausted {seen.exhausted}"
    )


def summary(seen: Seen, waited: Seen | None, seconds: float) -> Iterator[str]:
    """Yield what was seen. ``waited``: the state with the most parked tasks while the worker held the fewest."""
    yield ""
    yield (
        f"All {len(ORDERS)} tasks have ended after {seconds:.0f} s: {seen.at_once} succeeded at once, "
        f"{seen.recovered} recovered after 1 to {len(TIERS)} retries, {seen.exhausted} are exhausted."
    )
    if waited is not None:
        yield f"Meanwhile the worker held {waited.held} tasks while {waited.parked} waited in RabbitMQ."


NEXT = f"""
Your app needs three things:

  app.conf.rmq_delay = {{"tiers": ["{'", "'.join(TIERS)}"]}}
  celery_rmq_delay.install(app)
  @app.task(base=celery_rmq_delay.RetryableTask)

Commands to try next:

  celery -A YOUR_APP rmq-delay plan
  celery -A YOUR_APP rmq-delay doctor
  celery -A YOUR_APP rmq-delay status
  celery -A celery_rmq_delay.demo.worker rmq-delay capacity --rate 100/s --failure-rate 2%"""
