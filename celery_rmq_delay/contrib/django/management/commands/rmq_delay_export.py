"""``manage.py rmq_delay_export``: write retried tasks as CSV or JSON lines, or their events as history files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .....history.url import shown
from ...collecting.gathering import open_files
from ...conf import conf
from ...models import Operation, TaskRecord, TaskState
from ...services.actors import note_done, who_runs_this
from ...services.export import FORMATS, export_rows
from ..base import LongRunningCommand, day

PARQUET = "parquet"


class Command(LongRunningCommand):
    """Writes any number of rows in bounded memory."""

    help = "Write retried tasks as CSV or JSON lines, or their events as history files; secrets are redacted."

    def add_arguments(self, parser: CommandParser) -> None:
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
            help="only tasks in this state; may be repeated",
        )
        parser.add_argument("--queue", action="append", help="only tasks of this queue; may be repeated")
        parser.add_argument("--task", action="append", help="only tasks of this name; may be repeated")
        parser.add_argument("--unredacted", action="store_true", help="do not redact messages and arguments")
        parser.add_argument("--since", type=day, metavar="DAY", help="parquet: the first day (UTC), like 2026-01-31")
        parser.add_argument("--until", type=day, metavar="DAY", help="parquet: the last day (UTC)")
        parser.add_argument(
            "--output",
            help="the file to write (default: standard output); parquet: a URL or folder (default: HISTORY_URL)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        if options["format"] == PARQUET:
            _refuse(options, "state", "queue", "task", "unredacted", why="History files have all tasks, redacted.")
            self._export_history(options)
        else:
            _refuse(options, "since", "until", why="Use it with --format parquet only.")
            self._export_tasks(options)

    def _export_tasks(self, options: dict[str, Any]) -> None:
        columns = {"state": "state", "queue": "queue", "task": "name"}
        wanted = {f"{column}__in": options[option] for option, column in columns.items() if options[option]}
        tasks, redacted = TaskRecord.objects.filter(**wanted), not options["unredacted"]
        log = partial(_log, tasks.count(), format=options["format"], redacted=redacted, filters=wanted)
        pieces = export_rows(tasks, format=options["format"], redacted=redacted)
        if options["output"] is None:
            log()
            for piece in pieces:
                self.stdout.write(piece.decode(), ending="")
            return
        try:
            with Path(options["output"]).open("wb") as file:
                log()
                file.writelines(pieces)
        except OSError as error:
            raise CommandError(f"--output: {options['output']}: {error.strerror}") from error

    def _export_history(self, options: dict[str, Any]) -> None:
        place = options["output"] or conf().history_url
        if place is None:
            raise CommandError("No place for history files is configured: use --output, or set HISTORY_URL.")
        files = open_files(place)
        from ...services.history_export import days, export_days

        wanted = days(options["since"], options["until"])
        span = [str(each) for each in (*wanted[:1], *wanted[-1:])]
        _log(0, format=PARQUET, redacted=True, output=shown(place), days=span)
        rows = export_days(wanted, files, lambda day: self.write_line(_line(day)))
        self.stdout.write(f"Wrote {rows} rows of {len(wanted)} days into {files.files} files under {shown(place)}.")


def _line(day: Any) -> str:
    return f"{day.day}: {day.rows} rows" + ("" if day.has_successes else ", successes are in the collector's files")


def _log(requested: int, **details: Any) -> None:
    note_done(Operation.Kind.EXPORT, who_runs_this(), requested=requested, **details)


def _refuse(options: dict[str, Any], *names: str, why: str) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise CommandError(f"{', '.join(given)} cannot be used with --format {options['format']}. {why}")
