"""``manage.py rmq_delay_stats``: count tasks in the tables and messages in the broker's queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.core.serializers.json import DjangoJSONEncoder

from ...services.stats import summary


class Command(BaseCommand):
    """Counts in the tables, and in the broker where it answers."""

    help = "Count tasks by state, queue, tier and name, and the messages in the broker's queues."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        found = summary()
        if options["json"]:
            self.stdout.write(json.dumps(found, cls=DjangoJSONEncoder, indent=2))
            return
        for line in _lines(found):
            self.stdout.write(line)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield "States"
    for state, count in found["states"].items():
        yield f"{count:>10}  {state}"
    yield "Parked"
    for each in found["parked"]:
        tier = "exact" if each["tier"] is None else f"tier {each['tier']}"
        yield f"{each['count']:>10}  {each['queue']} {tier}, {each['due']} due, {each['overdue']} overdue"
    yield "Exhausted"
    for each in found["exhausted"]:
        yield f"{each['count']:>10}  {each['queue']}"
    yield "Tasks"
    for name, states in found["tasks"].items():
        yield f"{sum(states.values()):>10}  {name}: " + ", ".join(f"{count} {state}" for state, count in states.items())
    yield "Failure groups with most exhausted tasks"
    for each in found["groups"]:
        muted = " (muted)" if each["muted"] else ""
        yield f"{each['exhausted']:>10}  {each['exception_type']}: {each['message']}{muted}"
    yield "Collectors"
    for each in found["collectors"]:
        yield f"{each['waiting']:>10}  waiting for {each['name']}, lag {each['lag_ms'] / 1000:.1f} s"
    broker = found["broker"]
    yield "Broker" if broker["ok"] else f"Broker: {broker['error']}"
    for kind in ("parked", "exhausted", "events"):
        if broker[kind] is not None:
            yield f"{broker[kind]:>10}  {kind}"
