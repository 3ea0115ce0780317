"""``python -m celery_rmq_delay.analytics``: run, what-if, synth, describe.

Exit codes: 0 success; 2 an error that the user can correct, reported in one line; 130 and 143 after SIGINT and SIGTERM.

A command imports what needs the extra ``spark`` when it runs: ``--help`` works without it. Options have the names of
the fields that they set.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, timedelta
from functools import partial, wraps
from typing import Any

import click

from ..durations import parse_ms
from ..exceptions import AnalyticsError, RmqDelayError
from .days import ADVICE_DAYS, Days, parse_day
from .estimate.options import Options as Estimate

_Function = Callable[..., Any]
_DEFAULT = Estimate()

#: Each dependency has its own distribution.
MIXED = "mixed"
#: Half of the failures never recover, the others are exponential.
HALF_HARD = "half-hard"
#: Those of `synth.NAMED`, and both above.
DISTRIBUTIONS = (MIXED, "exponential", "lognormal", "bimodal", HALF_HARD)


class Failure(click.ClickException):
    """An error that the user can correct."""

    exit_code = 2


class Commands(click.Group):
    """Commands that report an error in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Parse the options of a command and run it."""
        try:
            return super().invoke(ctx)
        except RmqDelayError as error:
            raise Failure(" ".join(str(error).split())) from error
        except ModuleNotFoundError as error:
            if str(error.name).startswith("celery_rmq_delay"):
                raise
            raise Failure(f"{error.name} is not installed. Run pip install 'celery-rmq-delay[spark]'.") from error


class SparkCommand(click.Command):
    """A command that a signal ends between two calls of Java."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command in a thread."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from .run.pipeline import explained
        from .session import Stoppable

        ctx.obj = stoppable = Stoppable(lambda: super(SparkCommand, self).invoke(ctx))
        try:
            return stoppable.run()
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise AnalyticsError(explained(error)) from error


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"found {value!r}. Write NAME=VALUE, such as spark.driver.memory=8g.")
    return {name.strip(): found.strip() for name, _, found in (value.partition("=") for value in values)}


def _ladders(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, list[tuple[int, ...]]]:
    ladders: dict[str, list[tuple[int, ...]]] = {}
    for value in values:
        queue, found, delays = (part.strip() for part in value.partition("="))
        if not (queue and found and delays):
            raise click.BadParameter(f"found {value!r}. Write QUEUE=DELAYS, such as payments=30s,5m,1h.")
        ladder = tuple(parse_ms(each, f"--ladder {queue}") for each in delays.split(","))
        ladders.setdefault(queue, []).append(ladder)
    return ladders


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else parse_ms(value, param.opts[0]) / 1000


def _delay(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    return timedelta(milliseconds=parse_ms(value, param.opts[0]))


def _delay_or_0(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    return timedelta() if value in ("0", "0s") else _delay(ctx, param, value)


def _day(ctx: click.Context, param: click.Parameter, value: str | None) -> date | None:
    return parse_day(value, param.opts[0]) if value else None


ladder_option = click.option(
    "--ladder", "ladders", multiple=True, callback=_ladders, metavar="QUEUE=DELAYS",
    help="Also estimate the results of this ladder, such as payments=30s,5m,1h; may be repeated.",
)  # fmt: skip

_ESTIMATE = (
    click.option("--min-recovery", type=float, metavar="SHARE", help="Least share that an advised ladder recovers."),
    click.option(
        "--max-median", "max_median_s", callback=_seconds, metavar="DELAY",
        help="Longest median time to recovery of an advised ladder.",
    ),
    click.option(
        "--max-p95", "max_p95_s", callback=_seconds, metavar="DELAY",
        help="Longest 95th percentile of the time to recovery of an advised ladder.",
    ),
    click.option(
        "--delay-weight", default=_DEFAULT.delay_weight, show_default=True, metavar="RETRIES",
        help="How many retries per failure cost as much as today's mean time to recovery.",
    ),
    click.option(
        "--max-tiers", default=_DEFAULT.max_tiers, show_default=True, help="Most tiers of an advised ladder."
    ),
    click.option(
        "--min-episodes", default=_DEFAULT.min_episodes, show_default=True, help="Fewest failure episodes for advice."
    ),
    click.option(
        "--bootstrap-rounds", default=_DEFAULT.bootstrap_rounds, show_default=True,
        help="Resampled histories for the intervals; 0: no intervals.",
    ),
    click.option("--seed", default=_DEFAULT.seed, show_default=True, help="The same seed produces the same intervals."),
)  # fmt: skip

_ON_SPARK = (
    click.option("--master", metavar="URL", help="The cluster, such as spark://host:7077; default: this machine."),
    click.option(
        "--conf", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="A Spark setting; may be repeated."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def estimate_options(function: _Function) -> _Function:
    """Add the options of the estimate and the advice; the function receives them as ``estimate``."""

    @wraps(function)
    def with_estimate(**given: Any) -> Any:
        options = {each.name: given.pop(each.name) for each in fields(Estimate) if each.name in given}
        return function(estimate=Estimate(**options), **given)

    return _with(with_estimate, _ESTIMATE)


def on_spark(function: _Function) -> _Function:
    """Add the options of the Spark session, which the function opens with ``spark``, and print what it returns."""

    @wraps(function)
    def with_spark(master: str | None, conf: dict[str, str], as_json: bool, **given: Any) -> None:
        from .session import open_session

        found = function(spark=partial(open_session, master, conf), **given)
        click.echo(json.dumps(found.to_json(), indent=2) if as_json else found.text())

    return _with(with_spark, _ON_SPARK)


def _with(function: _Function, options: tuple[Callable[[_Function], _Function], ...]) -> _Function:
    for option in reversed(options):
        function = option(function)
    return function


@click.group(cls=Commands)
def main() -> None:
    """Analyse the retry history on Spark: outcomes of retries, and the ladder that fits the failures."""


@main.command(cls=SparkCommand)
@click.option(
    "--input", required=True, metavar="URL", envvar="RMQ_DELAY_HISTORY_URL", show_envvar=True,
    help="The history: the value of HISTORY_URL.",
)  # fmt: skip
@click.option(
    "--output", required=True, metavar="URL", envvar="RMQ_DELAY_INSIGHTS_URL", show_envvar=True,
    help="Where the tables are stored.",
)  # fmt: skip
@click.option(
    "--from", "first", callback=_day, metavar="DAY", help="First day (UTC), such as 2026-01-31; default: the oldest."
)  # fmt: skip
@click.option("--to", "last", callback=_day, metavar="DAY", help="Last day; default: the newest.")
@click.option(
    "--lookback", callback=_delay, default="7d", show_default=True,
    help="How far before the first day to read failures.",
)  # fmt: skip
@click.option("--no-compact", is_flag=True, help="Do not merge the small files of the history.")
@click.option("--no-advice", is_flag=True, help="Do not compute curves and advice.")
@click.option(
    "--advice-days", type=click.IntRange(min=1), default=ADVICE_DAYS, show_default=True,
    help="Days that curves and advice cover, the last day included; days before --from are read from --output.",
)  # fmt: skip
@click.option(
    "--keep-runs", callback=_delay_or_0, default="1d", show_default=True,
    help="How long the tables of a run can be read after another run was published.",
)  # fmt: skip
@ladder_option
@estimate_options
@click.option("--progress/--no-progress", default=None, help="Show Spark's progress bar; by default on a terminal.")
@on_spark
def run(
    spark: _Function, no_compact: bool, no_advice: bool, estimate: Estimate, progress: bool | None, **asked: Any
) -> Any:
    """Compute the tables for the selected days from the history, and publish them: exactly these days are replaced."""
    from .run.pipeline import run as run_pipeline
    from .run.planning import Run

    what = Run(compact=not no_compact, estimate=None if no_advice else estimate, **asked)
    session = spark(progress=sys.stderr.isatty() if progress is None else progress)
    return run_pipeline(session, what, _progress)


def _progress(line: str) -> None:
    """Print that a stage begins or has ended; end the run here if a signal has come."""
    click.get_current_context().obj.check()
    click.echo(line, err=True)


@main.command(name="what-if", cls=SparkCommand)
@click.option("--output", required=True, metavar="URL", help="The output of a run.")
@click.option("--from", "first", callback=_day, metavar="DAY", help="First day (UTC); default: the oldest.")
@click.option("--to", "last", callback=_day, metavar="DAY", help="Last day.")
@ladder_option
@estimate_options
@on_spark
def what_if_command(
    spark: _Function, output: str, first: date | None, last: date | None, ladders: Any, estimate: Estimate
) -> Any:
    """Estimate the results of other ladders from the tables of a run."""
    from .run.describe import evaluate_ladders

    if not ladders:
        raise click.UsageError("Give at least one --ladder, such as --ladder payments=30s,5m,1h.")
    return evaluate_ladders(spark(), output, Days(first or date.min, last or date.max), ladders, estimate)


@main.command(cls=SparkCommand)
@click.option("--input", "source", metavar="URL", help="A history.")
@click.option("--output", metavar="URL", help="The output of a run.")
@on_spark
def describe(spark: _Function, source: str | None, output: str | None) -> Any:
    """Describe a history or an output: days, files, rows, kinds of events, tables."""
    from .run.describe import describe_input, describe_output

    if (source is None) == (output is None):
        raise click.UsageError("Give --input, or --output.")
    return describe_input(spark(), source) if source is not None else describe_output(spark(), str(output))


@main.command
@click.option("--output", required=True, metavar="URL", help="Folder or URL to write to; must be empty.")
@click.option("--attempts", default=1_000_000, show_default=True, help="Attempts of tasks that fail at least once.")
@click.option("--days", default=30, show_default=True, help="Days that the history spans.")
@click.option("--start", type=click.DateTime(["%Y-%m-%d"]), default="2026-01-01", show_default=True, help="First day.")
@click.option("--seed", default=1, show_default=True, help="The same seed writes the same rows.")
@click.option(
    "--distribution", type=click.Choice(DISTRIBUTIONS), default=MIXED, show_default=True,
    help="How long failures last.",
)  # fmt: skip
@click.option(
    "--outages", type=click.Choice(["shared", "independent"]), default="shared", show_default=True,
    help="Whether a dependency is down for all its tasks at once, or failures are independent.",
)  # fmt: skip
@click.option("--workers", default=4, show_default=True, help="Workers, each with its own clock.")
@click.option(
    "--skew", "skew_s", default=0.2, show_default=True, metavar="SECONDS", help="Maximum error of a worker's clock."
)  # fmt: skip
@click.option("--duplicates", default=0.01, show_default=True, metavar="SHARE", help="Events that are written twice.")
@click.option("--late", default=0.01, show_default=True, metavar="SHARE", help="Events in separate files.")
@click.option("--bad-rows", default=0, show_default=True, help="Rows that cleaning must quarantine.")
@click.option("--bad-files", is_flag=True, help="Also write files that cannot be read.")
@click.option("--processes", default=2, show_default=True, help="Processes that write.")
def synth(output: str, start: datetime, distribution: str, processes: int, **asked: Any) -> None:
    """Write a synthetic retry history and its truth (_truth.json)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .synth import NAMED, TRUTH, Spec, default_shop, write

    named = None if distribution == MIXED else NAMED["exponential" if distribution == HALF_HARD else distribution]
    shop = default_shop(named, 0.5 if distribution == HALF_HARD else None)
    spec = Spec(start=start.date(), shop=shop, **asked)
    columns = (TextColumn("attempts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        line = bar.add_task("attempts", total=spec.attempts)
        truth = write(output, spec, processes=processes, progress=lambda count: bar.advance(line, count))
    counts = truth["counts"]
    click.echo(
        f"{counts['rows']:,} events of {counts['episodes']:,} failed tasks in {counts['files']:,} files; {TRUTH}"
    )
