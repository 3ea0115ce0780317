"""``python -m celery_rmq_delay.analytics``: run, what-if, synth, describe.

Exit codes: 0 success; 2 an error that the user can correct, reported in one line; 130 and 143 after SIGINT and SIGTERM.

A command imports what needs the extra ``spark`` when it runs: ``--help`` works without it.
"""

from __future__ import annotations

import json
import sys
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click

from ..durations import parse_ms
from ..exceptions import AnalyticsError, RmqDelayError
from .cli_options import estimate_options, ladder_option, on_spark
from .days import ADVICE_DAYS, Days, parse_day

if TYPE_CHECKING:
    from .estimate.options import Options as Estimate
    from .synth import Distribution
    from .synth.spec import Outages

#: Each dependency has its own distribution.
MIXED = "mixed"
#: Half of the failures never recover, the others are exponential.
HALF_HARD = "half-hard"
#: Those of `synth.NAMED`, and both above.
DISTRIBUTIONS = (MIXED, "exponential", "lognormal", "bimodal", HALF_HARD)


class Failure(click.ClickException):
    """An error that the user can correct."""

    exit_code = 2


class Command(click.Command):
    """A command that reports an error in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return self.work(ctx)
        except RmqDelayError as error:
            raise Failure(" ".join(str(error).split())) from error
        except ModuleNotFoundError as error:
            if str(error.name).startswith("celery_rmq_delay"):
                raise
            raise Failure(f"{error.name} is not installed. Run pip install 'celery-rmq-delay[spark]'.") from error

    def work(self, ctx: click.Context) -> Any:
        """Call the function of the command."""
        return super().invoke(ctx)


class SparkCommand(Command):
    """A command that a signal ends between two calls of Java."""

    def work(self, ctx: click.Context) -> Any:
        """Call the function of the command in a thread."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from .run.pipeline import explained
        from .stopping import Stoppable

        ctx.obj = stoppable = Stoppable(lambda: super(SparkCommand, self).work(ctx))
        try:
            return stoppable.run()
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise AnalyticsError(explained(error)) from error


@click.group()
def main() -> None:
    """Analyse the retry history on Spark: outcomes of retries, and the ladder that fits the failures."""


@main.command(cls=SparkCommand)
@click.option(
    "--input",
    "source",
    required=True,
    metavar="URL",
    envvar="RMQ_DELAY_HISTORY_URL",
    show_envvar=True,
    help="The history: the value of HISTORY_URL.",
)
@click.option(
    "--output", required=True, metavar="URL", envvar="RMQ_DELAY_INSIGHTS_URL", show_envvar=True,
    help="Where the tables are stored.",
)  # fmt: skip
@click.option("--from", "first", metavar="DAY", help="First day (UTC), such as 2026-01-31; default: the oldest.")
@click.option("--to", "last", metavar="DAY", help="Last day; default: the newest.")
@click.option("--lookback", default="7d", show_default=True, help="How far before the first day to read failures.")
@click.option("--no-compact", is_flag=True, help="Do not merge the small files of the history.")
@click.option("--no-advice", is_flag=True, help="Do not compute curves and advice.")
@click.option(
    "--advice-days", type=click.IntRange(min=1), default=ADVICE_DAYS, show_default=True,
    help="Days that curves and advice cover, the last day included; days before --from are read from --output.",
)  # fmt: skip
@click.option(
    "--keep-runs", default="1d", show_default=True,
    help="How long the tables of a run can be read after another run was published.",
)  # fmt: skip
@ladder_option
@estimate_options
@click.option("--progress/--no-progress", default=None, help="Show Spark's progress bar; by default on a terminal.")
@on_spark
def run(
    source: str,
    output: str,
    first: str | None,
    last: str | None,
    lookback: str,
    no_compact: bool,
    no_advice: bool,
    advice_days: int,
    keep_runs: str,
    ladders: dict[str, list[tuple[int, ...]]],
    estimate: Estimate,
    progress: bool | None,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Compute the tables for the selected days from the history, and publish them: exactly these days are replaced."""
    from .run.pipeline import run as run_pipeline
    from .run.planning import Run
    from .session import open_session

    what = Run(
        input=source,
        output=output,
        first=parse_day(first, "--from") if first else None,
        last=parse_day(last, "--to") if last else None,
        lookback=_delay(lookback, "--lookback"),
        compact=not no_compact,
        estimate=None if no_advice else estimate,
        advice_days=advice_days,
        keep_runs=timedelta() if keep_runs in ("0", "0s") else _delay(keep_runs, "--keep-runs"),
        ladders=ladders,
    )
    shown = sys.stderr.isatty() if progress is None else progress
    spark = open_session(master, conf, progress=shown)
    report = run_pipeline(spark, what, _progress)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else report.text())


def _delay(text: str, option: str) -> timedelta:
    return timedelta(milliseconds=parse_ms(text, option))


def _progress(line: str) -> None:
    """Print that a stage begins or has ended; end the run here if a signal has come."""
    click.get_current_context().obj.check()
    click.echo(line, err=True)


@main.command(name="what-if", cls=SparkCommand)
@click.option("--output", required=True, metavar="URL", help="The output of a run.")
@click.option("--from", "first", metavar="DAY", help="First day (UTC); default: the oldest.")
@click.option("--to", "last", metavar="DAY", help="Last day.")
@ladder_option
@estimate_options
@on_spark
def what_if_command(
    output: str,
    first: str | None,
    last: str | None,
    ladders: dict[str, list[tuple[int, ...]]],
    estimate: Estimate,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Estimate the results of other ladders from the tables of a run."""
    from .run.describe import evaluate_ladders
    from .session import open_session

    if not ladders:
        raise click.UsageError("Give at least one --ladder, such as --ladder payments=30s,5m,1h.")
    spark = open_session(master, conf)
    since = parse_day(first, "--from") if first else date.min
    days = Days(since, parse_day(last, "--to") if last else date.max)
    found = evaluate_ladders(spark, output, days, ladders, estimate)
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else found.text())


@main.command(cls=SparkCommand)
@click.option("--input", "source", metavar="URL", help="A history.")
@click.option("--output", metavar="URL", help="The output of a run.")
@on_spark
def describe(source: str | None, output: str | None, master: str | None, conf: dict[str, str], as_json: bool) -> None:
    """Describe a history or an output: days, files, rows, kinds of events, tables."""
    from .run.describe import describe_input, describe_output
    from .session import open_session

    if (source is None) == (output is None):
        raise click.UsageError("Give --input, or --output.")
    spark = open_session(master, conf)
    found = describe_input(spark, source) if source is not None else describe_output(spark, str(output))
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else found.text())


@main.command(cls=Command)
@click.option("--output", required=True, metavar="URL", help="Folder or URL to write to; must be empty.")
@click.option("--attempts", default=1_000_000, show_default=True, help="Attempts of tasks that fail at least once.")
@click.option("--days", default=30, show_default=True, help="Days that the history spans.")
@click.option("--start", type=click.DateTime(["%Y-%m-%d"]), default="2026-01-01", show_default=True, help="First day.")
@click.option("--seed", default=1, show_default=True, help="The same seed writes the same rows.")
@click.option(
    "--distribution",
    type=click.Choice(DISTRIBUTIONS),
    default=MIXED,
    show_default=True,
    help="How long failures last.",
)
@click.option(
    "--outages",
    type=click.Choice(["shared", "independent"]),
    default="shared",
    show_default=True,
    help="Whether a dependency is down for all its tasks at once, or failures are independent.",
)
@click.option("--workers", default=4, show_default=True, help="Workers, each with its own clock.")
@click.option("--skew", default=0.2, show_default=True, metavar="SECONDS", help="Maximum error of a worker's clock.")
@click.option("--duplicates", default=0.01, show_default=True, metavar="SHARE", help="Events that are written twice.")
@click.option("--late", default=0.01, show_default=True, metavar="SHARE", help="Events in separate files.")
@click.option("--bad-rows", default=0, show_default=True, help="Rows that cleaning must quarantine.")
@click.option("--bad-files", is_flag=True, help="Also write files that cannot be read.")
@click.option("--processes", default=2, show_default=True, help="Processes that write.")
def synth(
    output: str,
    attempts: int,
    days: int,
    start: datetime,
    seed: int,
    distribution: str,
    outages: str,
    workers: int,
    skew: float,
    duplicates: float,
    late: float,
    bad_rows: int,
    bad_files: bool,
    processes: int,
) -> None:
    """Write a synthetic retry history and its truth (_truth.json)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .synth import TRUTH, default_shop, write
    from .synth.spec import Spec

    spec = Spec(
        attempts=attempts,
        days=days,
        start=start.date(),
        seed=seed,
        shop=default_shop(_lasting(distribution), 0.5 if distribution == HALF_HARD else None),
        outages=cast("Outages", outages),
        workers=workers,
        skew_s=skew,
        duplicates=duplicates,
        late=late,
        bad_rows=bad_rows,
        bad_files=bad_files,
    )
    columns = (TextColumn("attempts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        line = bar.add_task("attempts", total=attempts)
        truth = write(output, spec, processes=processes, progress=lambda count: bar.advance(line, count))
    counts = truth["counts"]
    click.echo(
        f"{counts['rows']:,} events of {counts['episodes']:,} failed tasks in {counts['files']:,} files; {TRUTH}"
    )


def _lasting(name: str) -> Distribution | None:
    from .synth import NAMED

    return None if name == MIXED else NAMED["exponential" if name == HALF_HARD else name]
