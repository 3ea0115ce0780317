"""``python -m celery_rmq_delay.analytics synth``: write a synthetic history."""

from __future__ import annotations

from datetime import datetime
from typing import cast

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...exceptions import SettingsError
from .distributions import NAMED, Distribution
from .spec import Outages, Spec, default_shop
from .truth import NAME
from .writing import write

#: Each dependency has its own distribution.
_MIXED = "mixed"
#: Half of the failures never recover, the others are exponential.
_HALF_HARD = "half-hard"


@click.command(name="synth")
@click.option("--output", required=True, metavar="URL", help="Folder or URL to write to; must be empty.")
@click.option("--attempts", default=1_000_000, show_default=True, help="Attempts of tasks that fail at least once.")
@click.option("--days", default=30, show_default=True, help="Days that the history spans.")
@click.option("--start", type=click.DateTime(["%Y-%m-%d"]), default="2026-01-01", show_default=True, help="First day.")
@click.option("--seed", default=1, show_default=True, help="The same seed writes the same rows.")
@click.option(
    "--distribution",
    type=click.Choice([_MIXED, *NAMED, _HALF_HARD]),
    default=_MIXED,
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
    try:
        spec = Spec(
            attempts=attempts,
            days=days,
            start=start.date(),
            seed=seed,
            shop=default_shop(_lasting(distribution), 0.5 if distribution == _HALF_HARD else None),
            outages=cast(Outages, outages),
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
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    counts = truth["counts"]
    click.echo(f"{counts['rows']:,} events of {counts['episodes']:,} failed tasks in {counts['files']:,} files; {NAME}")


def _lasting(name: str) -> Distribution | None:
    return None if name == _MIXED else NAMED["exponential" if name == _HALF_HARD else name]
