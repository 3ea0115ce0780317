"""``manage.py rmq_delay_operate``: run operations in the background, or start one from the command line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from .....durations import parse_ms
from .....stopping import stop_requested
from ...models import Operation, TaskRecord, TaskState
from ...services.actors import who_runs_this
from ...services.operations.actions import ACTIONS
from ...services.operations.background import operate
from ...services.operations.requests import freeze, report, run
from ..base import LongRunningCommand

#: The actions, with the kind of operation and the state of the tasks they are for.
_COMMANDS = {each.command[0]: (each.kind, each.command[1]) for each in ACTIONS if each.command}
#: The same, with those of parked tasks last.
COMMANDS = dict(sorted(_COMMANDS.items(), key=lambda each: each[1][1] == TaskState.PARKED))
CONDITIONS = {"queue": "queue", "task": "name", "error": "exception_type", "id": "task_id__in"}
#: The options that only an action uses, and those that it does not use, with the names of their values.
_OF_AN_ACTION = {
    **{f"--{name}": name for name in (*CONDITIONS, "all", "reason", "canary", "rate", "at")},
    "--in": "delay",
    "--dry-run": "dry_run",
}
_OF_A_RUNNER = {"--once": "once", "--operation": "operation"}
_SHOWN = 20


class Command(LongRunningCommand):
    """Runs until SIGTERM or SIGINT; then it finishes its current step, and another process can continue."""

    help = "Run operations that the admin queued for the background; with an action, start an operation and run it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", nargs="?", choices=list(COMMANDS), help="start an operation, and wait for its end"
        )
        parser.add_argument("--once", action="store_true", help="exit when there is no operation to run")
        parser.add_argument("--operation", type=int, metavar="ID", help="run this operation, then exit")
        selection = parser.add_argument_group("tasks of an action; all conditions must match")
        selection.add_argument("--queue", help="of this origin queue")
        selection.add_argument("--task", help="of this name")
        selection.add_argument("--error", help="with this class of error, such as requests.exceptions.ReadTimeout")
        selection.add_argument("--id", action="append", help="with this task id; may be repeated")
        selection.add_argument("--all", action="store_true", help="all of them")
        how = parser.add_argument_group("how")
        how.add_argument("--reason", help="why; stored with the operation")
        how.add_argument("--canary", type=int, metavar="N", help="requeue: send N first, the rest once they recovered")
        how.add_argument("--rate", type=int, metavar="N", help="requeue: at most N per minute")
        start = how.add_mutually_exclusive_group()
        start.add_argument("--at", metavar="TIME", help="start then, such as 2026-01-31T03:00")
        start.add_argument("--in", dest="delay", metavar="DELAY", help="start after a delay, such as 2h30m")
        how.add_argument("--dry-run", action="store_true", help="only show which tasks are selected")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["action"]:
            _refuse(options, _OF_A_RUNNER, "with an action: leave it out.")
        else:
            _refuse(options, _OF_AN_ACTION, f"without an action: write {', '.join(COMMANDS)} before it.")
        with stop_requested() as stop:
            if options["action"]:
                self._start(options, stop.is_set)
            elif options["operation"] is not None:
                self._run(self._given(options["operation"]), stop.is_set)
            else:
                self.write_line("Running background operations.")
                operate(stop.is_set, once=options["once"])

    def _given(self, key: int) -> Operation:
        try:
            return Operation.objects.get(pk=key)
        except Operation.DoesNotExist as error:
            raise CommandError(f"There is no operation {key}.") from error

    def _start(self, options: dict[str, Any], stop: Callable[[], bool]) -> None:
        kind, state = COMMANDS[options["action"]]
        given = {field: options[name] for name, field in CONDITIONS.items() if options[name]}
        if given and options["all"]:
            raise CommandError("--all and a condition exclude each other: leave one out.")
        if not (given or options["all"]):
            raise CommandError("No tasks selected: use --queue, --task, --error, --id or --all.")
        records = TaskRecord.objects.filter(state=state, **given).order_by("exhausted_at", "pk")
        _check_found(records, state.lower(), given)
        if options["dry_run"]:
            self._show(records)
            return
        operation = freeze(
            kind,
            records,
            actor=who_runs_this(),
            reason=options["reason"] or "",
            canary=options["canary"] or 0,
            rate=options["rate"],
            not_before=_start_time(options["at"], options["delay"]),
            details={"filters": given},
        )
        self.write_line(f"Operation {operation.pk}: {operation.requested} tasks.")
        if operation.not_before is None:
            self._run(operation, stop)
        else:
            self.write_line(
                f"A running rmq_delay_operate starts it at {operation.not_before.isoformat(' ', 'seconds')}."
            )

    def _show(self, records: QuerySet[TaskRecord]) -> None:
        rows = records.order_by().values_list("queue", "name", "exception_type").annotate(count=Count("pk"))
        for queue, name, error, count in rows.order_by("-count")[:_SHOWN]:
            self.write_line(f"{count:>10}  {queue}  {name}  {error}")
        self.write_line(f"{records.count():>10}  in total. Nothing was changed.")

    def _run(self, operation: Operation, stop: Callable[[], bool]) -> None:
        operation = run(operation, stop=stop)
        self.write_line(f"{operation.get_state_display()}: {report(operation)}.")
        if operation.failed or operation.unknown or operation.state != Operation.State.DONE:
            raise CommandError("The operation did not succeed for all tasks.", returncode=1)


def _refuse(options: dict[str, Any], names: dict[str, str], why: str) -> None:
    if given := [option for option, name in names.items() if options[name] is not None and options[name] is not False]:
        raise CommandError(f"{', '.join(given)} cannot be used {why}")


def _check_found(records: QuerySet[TaskRecord], state: str, given: dict[str, Any]) -> None:
    """Raise `CommandError` if there are no such tasks, or none for one of the given ids."""
    wanted = given.get("task_id__in", [])
    found = set(records.values_list("task_id", flat=True)) if wanted else set()
    if missing := [each for each in dict.fromkeys(wanted) if each not in found]:
        among = f"the {state} tasks that meet the other conditions" if len(given) > 1 else f"the {state} tasks"
        raise CommandError(f"Not found among {among}: {', '.join(missing)}. Nothing was changed.")
    if not records.exists():
        raise CommandError(f"No {state} tasks were found. Nothing was changed.")


def _start_time(at: str | None, delay: str | None) -> datetime | None:
    if delay is not None:
        return timezone.now() + timedelta(milliseconds=parse_ms(delay, "--in"))
    if at is None:
        return None
    try:
        found = parse_datetime(at)
    except ValueError:
        found = None
    if found is None:
        raise CommandError(f"--at {at} is not a time. Write one such as 2026-01-31T03:00 or 2026-01-31T03:00+01:00.")
    if timezone.is_naive(found) and settings.USE_TZ:
        return timezone.make_aware(found)
    return found if settings.USE_TZ or timezone.is_naive(found) else timezone.make_naive(found)
