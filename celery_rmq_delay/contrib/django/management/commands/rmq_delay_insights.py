"""``manage.py rmq_delay_insights``: run the analytics over the history, and load what they say into the admin."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.core.management.base import CommandError, CommandParser

from .....exceptions import RmqDelayError
from .....stopping import exit_at_once, handling
from ...conf import SETTING
from ...services.insight_runs import history_url, load, output_url, run_and_load
from ..long_running import LongRunningCommand

_OF_A_RUN = {"--from": "first", "--to": "last", "--master": "master", "--conf": "conf", "--ladder": "ladder"}


class Command(LongRunningCommand):
    """Spark runs in a process of its own; the insights that are there stay until the new ones are whole."""

    help = "Run the analytics over the history and fill the page Insights; with --load-only, load a finished run."

    def add_arguments(self, parser: CommandParser) -> None:
        """Tell the parser of the options."""
        parser.add_argument("--load-only", action="store_true", help="load what a finished run has written")
        parser.add_argument("--input", metavar="URL", help="the history; without it, the setting HISTORY_URL")
        parser.add_argument(
            "--output", metavar="URL", help="where the analytics write; without it, INSIGHTS_URL, or beside the history"
        )
        parser.add_argument("--from", dest="first", type=_day, metavar="DAY", help="the first day, as YYYY-MM-DD")
        parser.add_argument("--to", dest="last", type=_day, metavar="DAY", help="the last day")
        parser.add_argument("--master", metavar="URL", help="Spark's master; without it, this machine")
        parser.add_argument(
            "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be repeated"
        )
        parser.add_argument(
            "--ladder",
            action="append",
            default=[],
            metavar="QUEUE=DELAYS",
            help="also tell what this ladder would have come to, such as payments=30s,5m,1h; may be repeated",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Run and load, or only load."""
        source = history_url(options["input"])
        try:
            output = output_url(options["output"], source)
            if options["load_only"]:
                if given := [option for option, name in _OF_A_RUN.items() if options[name]]:
                    raise CommandError(f"{', '.join(given)} is of a run; --load-only loads a finished one.")
                run = load(output, source=source or "")
            elif source is None:
                raise CommandError(f"Nobody says where the history is: give --input, or set {SETTING}['HISTORY_URL'].")
            else:
                with handling(exit_at_once):
                    run = run_and_load(
                        source,
                        output,
                        say=self.write_line,
                        first=options["first"],
                        last=options["last"],
                        master=options["master"],
                        conf=options["conf"],
                        ladders=options["ladder"],
                    )
        except RmqDelayError as error:
            raise CommandError(str(error)) from error
        self.write_line(f"Insights of {run} are loaded from {run.output_url}.")


def _day(value: str) -> date:
    return date.fromisoformat(value)
