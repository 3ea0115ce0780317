"""``manage.py rmq_delay_insights``: run the analytics over the history, and load their results into the admin."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from .....stopping import exit_at_once, handling
from ...conf import SETTING, conf
from ...services.insight_runs import load, output_url, run_and_load
from ..base import LongRunningCommand, day

#: The options that the run of the analytics gets.
_OF_A_RUN = {"--from": "first", "--to": "last", "--master": "master", "--conf": "conf", "--ladder": "ladder"}


class Command(LongRunningCommand):
    """Runs Spark in a subprocess; the present insights stay until the new ones are complete."""

    help = "Run the analytics over the history and fill the page Insights; with --load-only, load a finished run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--load-only", action="store_true", help="load the output of a finished run")
        parser.add_argument("--input", metavar="URL", help="the history; default: the setting HISTORY_URL")
        parser.add_argument(
            "--output", metavar="URL", help="where the analytics write; default: INSIGHTS_URL, or beside the history"
        )
        parser.add_argument("--from", dest="first", type=day, metavar="DAY", help="the first day, such as 2026-01-31")
        parser.add_argument("--to", dest="last", type=day, metavar="DAY", help="the last day")
        parser.add_argument("--master", metavar="URL", help="Spark's master; default: this machine")
        parser.add_argument(
            "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be repeated"
        )
        parser.add_argument(
            "--ladder",
            action="append",
            default=[],
            metavar="QUEUE=DELAYS",
            help="also estimate the result of this ladder, such as payments=30s,5m,1h; may be repeated",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        source = options["input"] or conf().history_url
        output = output_url(options["output"], source)
        given = {option: options[name] for option, name in _OF_A_RUN.items() if options[name]}
        if options["load_only"]:
            if given:
                raise CommandError(f"{', '.join(given)} cannot be used with --load-only, which runs nothing.")
            run = load(output, source=source or "")
        elif source is None:
            raise CommandError(f"No history is configured: use --input, or set {SETTING}['HISTORY_URL'].")
        else:
            lists = {name: found if isinstance(found, list) else [found] for name, found in given.items()}
            of_run = [f"{name}={each}" for name, found in lists.items() for each in found]
            with handling(exit_at_once):
                run = run_and_load(source, output, of_run, self.write_line)
        self.write_line(f"Loaded the insights of {run} from {run.output_url}.")
