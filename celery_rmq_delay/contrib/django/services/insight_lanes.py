"""Jitter lanes: the outcomes of a tier's delay queues, whose delays differ, as one row. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: The largest step from the delay of one lane to that of the next one. Delays further apart are of two ladders.
STEP = 2


def of_tiers(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``rows``, which ``by`` identifies, with one for all lanes of a tier: the sums of their other columns.

    Its ``delay_ms`` is the middle of the delays that the queue's lanes have: the tier's own. Exact delays, whose
    ``tier`` is None, stay as they are.
    """
    found: dict[tuple[Any, Any], set[int]] = defaultdict(set)
    for row in rows:
        if row["tier"] is not None and row["delay_ms"] is not None:
            found[row["queue"], row["tier"]].add(row["delay_ms"])
    own = {(*key, delay): middle for key, delays in found.items() for delay, middle in _middles(sorted(delays))}
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        of_tier = {**row, "delay_ms": own.get((row["queue"], row["tier"], row["delay_ms"]), row["delay_ms"])}
        known = sums.setdefault(tuple(of_tier[name] for name in by), of_tier)
        if known is not of_tier:
            known.update({name: (known[name] or 0) + (row[name] or 0) for name in row if name not in by})
    return list(sums.values())


def _middles(delays: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each delay of a tier, in order, with the middle of the lanes to which it belongs."""
    start = 0
    for end in range(1, len(delays) + 1):
        if end == len(delays) or delays[end] > STEP * delays[end - 1]:
            lanes = delays[start:end]
            yield from ((delay, round((lanes[0] + lanes[-1]) / 2)) for delay in lanes)
            start = end
