"""The table ``what_if``: the figures of ladders that the user specifies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ...durations import MAX_TTL_MS
from ...exceptions import SettingsError
from ..estimate.by_attempt import by_attempt
from ..estimate.intervals import Intervals, lacking
from ..estimate.ladders import Summary, summarise
from ..estimate.options import Options
from ..estimate.shares import shares
from ..schema import WHAT_IF
from .aggregation import counted_intervals, intervals_of, late_retries_of, spread
from .ladder_advice import figure_columns

if TYPE_CHECKING:
    from ..estimate.search import Ladder


def what_if(episodes: DataFrame, ladders: Mapping[str, Sequence[Ladder]], options: Options) -> DataFrame:
    """Return `WHAT_IF` of `EPISODES` for ``ladders``: queue -> ladders in milliseconds, one row each.

    Figures are those of `ladders.summarise`, null if there is not enough data; ``reason`` states what is lacking, or
    that clocks differ. A queue without any retried failure has no row. Raises `SettingsError` for a ladder that
    RabbitMQ cannot hold.
    """
    for queue, named in ladders.items():
        for each in named:
            _check(queue, each)
    wanted = {queue: [tuple(each) for each in named] for queue, named in ladders.items()}

    def of_queue(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        return _rows(key[0], rows, wanted[key[0]], options)

    chosen = episodes.where(F.col("queue").isin(list(wanted)))
    counted = spread(counted_intervals(chosen, ["queue"], options, ("task", "exception_type")), "queue")
    return counted.groupBy("queue").applyInPandas(of_queue, WHAT_IF)


def unseen(ladders: Mapping[str, Sequence[Ladder]], seen: Collection[str]) -> list[str]:
    """Return a sentence for each queue of ``ladders`` that is not in the table, whose queues are ``seen``."""
    return [f"no retried failure of the queue {queue}" for queue in ladders if queue not in seen]


def _check(queue: str, ladder: Ladder) -> None:
    if not ladder or not all(isinstance(each, int) and 1 <= each <= MAX_TTL_MS for each in ladder):
        raise SettingsError(f"ladder of {queue}", ladder, "Give at least one delay, each of 1 ms to ten years.")


def _rows(queue: str, rows: pd.DataFrame, ladders: Sequence[Ladder], options: Options) -> pd.DataFrame:
    intervals = intervals_of(rows, options)
    too_few = lacking(intervals, options) or late_retries_of(rows).early(intervals)
    summary_of = None if too_few else _figures_of(rows, intervals, options)
    found = []
    for each in ladders:
        summary = summary_of(each) if summary_of else None
        row = {
            "queue": queue,
            "ladder_ms": list(each),
            "enough_data": too_few is None,
            "reason": too_few,
            "episodes": intervals.episodes,
        }
        found.append({**row, **figure_columns("", summary)})
    return pd.DataFrame(found, columns=WHAT_IF.fieldNames())


def _figures_of(rows: pd.DataFrame, intervals: Intervals, options: Options) -> Callable[[Ladder], Summary]:
    """Return the function that returns the figures of a ladder; ``intervals``: those of the same rows."""
    estimate = shares(intervals, options)
    late = late_retries_of(rows).lateness(intervals, estimate)
    attempts = by_attempt(intervals, estimate, options)
    return lambda ladder: summarise(ladder, estimate, options.grid, late, attempts)
