"""``manage.py rmq_delay_export``: retried tasks as CSV or JSON lines, their events as history files."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import date
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .....exceptions import HistoryError
from .....history.url import shown
from ...collecting.gathering import open_files
from ...conf import conf
from ...models import Operation, TaskRecord, TaskState
from ...services.actors import note_done, who_runs_this
from ...services.export import FORMATS, export_rows
from ..long_running import LongRunningCommand

PARQUET = "parquet"


class Command(LongRunningCommand):
    """Writes any number of rows in bounded memory."""

    help = "Write retried tasks as CSV or JSON lines, or their events as history files; without secrets."

    def add_arguments(self, parser: CommandParser) -> None:
        """Tell the parser of the options."""
        parser.add_argument(
            "--format",
            choices=[*FORMATS, PARQUET],
            required=True,
            help="csv; jsonl: one JSON object a line; parquet: history files",
        )
        parser.add_argument(
            "--state",
            action="append",
            choices=TaskState.values,
            type=str.upper,
            help="only tasks in this state; repeat it",
        )
        parser.add_argument("--queue", action="append", help="only tasks of this queue; repeat it for more")
        parser.add_argument("--task", action="append", help="only tasks of this name; repeat it for more")
        parser.add_argument("--unredacted", action="store_true", help="leave secrets in messages and arguments")
        parser.add_argument("--since", type=_day, metavar="DAY", help="parquet: the first day (UTC), as 2026-01-31")
        parser.add_argument("--until", type=_day, metavar="DAY", help="parquet: the last day (UTC)")
        parser.add_argument(
            "--output",
            help="the file to write; without it, the standard output. parquet: URL or folder; without it, HISTORY_URL",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Write what is asked for; that it was done is in the audit log before."""
        if options["format"] == PARQUET:
            _refuse(options, "state", "queue", "task", "unredacted", why="History files take everything, redacted.")
            self._export_history(options)
        else:
            _refuse(options, "since", "until", why="They are for --format parquet.")
            self._export_tasks(options)

    def _export_tasks(self, options: dict[str, Any]) -> None:
        """Write the tasks that are asked for, oldest record first."""
        columns = {"state": "state", "queue": "queue", "task": "name"}
        wanted = {f"{column}__in": options[option] for option, column in columns.items() if options[option]}
        tasks, redacted = TaskRecord.objects.filter(**wanted), not options["unredacted"]
        _log(tasks.count(), format=options["format"], redacted=redacted, filters=wanted)
        pieces = export_rows(tasks, format=options["format"], redacted=redacted)
        if options["output"] is None:
            for piece in pieces:
                self.stdout.write(piece.decode(), ending="")
            return
        with Path(options["output"]).open("wb") as file:
            file.writelines(pieces)

    def _export_history(self, options: dict[str, Any]) -> None:
        place = options["output"] or conf().history_url
        if place is None:
            raise CommandError("Nobody says where the history files go: give --output, or set HISTORY_URL.")
        try:
            files = open_files(place)
            from ...services.history_export import days, export_days

            wanted = days(options["since"], options["until"])
            span = [str(each) for each in (*wanted[:1], *wanted[-1:])]
            _log(0, format=PARQUET, redacted=True, output=shown(place), days=span)
            rows = export_days(wanted, files, lambda day: self.write_line(_line(day)))
        except HistoryError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{rows} rows of {len(wanted)} days, in {files.files} files under {shown(place)}.")


def _line(day: Any) -> str:
    return f"{day.day}: {day.rows} rows" + (
        "" if day.has_successes else ", successes as the collector's files have them"
    )


def _log(requested: int, **details: Any) -> None:
    note_done(Operation.Kind.EXPORT, who_runs_this(), requested=requested, **details)


def _refuse(options: dict[str, Any], *names: str, why: str) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise CommandError(f"{', '.join(given)}: not with --format {options['format']}. {why}")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"found {text!r}; write a day, such as 2026-01-31") from error
