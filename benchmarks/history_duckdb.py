"""Compute the pipeline's tables of the history with DuckDB, on one machine and without Spark, for comparison.

    python -m benchmarks.history_duckdb --input FOLDER --output FOLDER [--memory 8GB] [--threads 2]

Writes a Parquet file per table, and prints the seconds of each as JSON. `benchmarks.history` runs it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

#: One row per event: the earliest of duplicates.
CLEAN = """
SELECT event_id, kind, occurred_at, coalesce(task_id, event_id) AS task_id, generation, attempt, task, queue, worker,
       tier, delay_ms, first_failed_at, runtime_ms, exception_type, exception_message, fingerprint, reason, ladder_ms,
       ok_count
FROM read_parquet('{input}/day=*/*.parquet', hive_partitioning = false)
QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY occurred_at, kind, worker, reason) = 1
"""

#: One row per attempt, with the wait before it and how long the failure has lasted.
ATTEMPTS = """
WITH outcomes AS (
    SELECT *, CASE kind WHEN 'forwarded' THEN 'parked' ELSE kind END AS outcome, kind = 'discarded' AS is_discard
    FROM clean WHERE kind IN ('parked', 'forwarded', 'exhausted', 'recovered', 'discarded')
), merged AS (
    SELECT * FROM outcomes
    QUALIFY row_number() OVER (
        PARTITION BY task_id, generation, attempt, is_discard
        ORDER BY CASE outcome WHEN 'recovered' THEN 2 WHEN 'exhausted' THEN 1 ELSE 0 END DESC, occurred_at, kind, worker
    ) = 1
), placed AS (
    SELECT *, first_value(first_failed_at IGNORE NULLS) OVER whole AS origin
    FROM merged
    WINDOW whole AS (
        PARTITION BY task_id, generation ORDER BY attempt, is_discard
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
), timed AS (
    SELECT *,
           CASE WHEN NOT is_discard
                THEN greatest(epoch_us(occurred_at) - 1000 * coalesce(runtime_ms, 0) - epoch_us(origin), 0) / 1e6
           END AS seconds,
           outcome IN ('parked', 'exhausted') AS is_failed
    FROM placed
)
SELECT task_id, generation, attempt, task, queue, worker, outcome, occurred_at AS ended_at, runtime_ms, exception_type,
       fingerprint, exception_message, reason, ladder_ms,
       lag(CASE WHEN is_failed THEN tier END) OVER along AS tier,
       lag(CASE WHEN is_failed THEN delay_ms END) OVER along AS delay_ms,
       lag(CASE WHEN is_failed THEN exception_type END) OVER along AS previous_exception_type,
       max(seconds) OVER so_far AS t_seconds,
       max(CASE WHEN is_failed THEN seconds END) OVER so_far AS low_seconds,
       count(*) FILTER (is_failed) OVER so_far AS failed_attempts,
       coalesce(sum(runtime_ms) FILTER (is_failed) OVER so_far, 0) AS wasted_ms,
       first_value(exception_type IGNORE NULLS) OVER so_far AS first_exception,
       origin
FROM timed
WINDOW along AS (PARTITION BY task_id, generation ORDER BY attempt, is_discard),
       so_far AS (
           PARTITION BY task_id, generation ORDER BY attempt, is_discard
           ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
       )
"""

#: One row per task from its first failure to its end.
EPISODES = """
SELECT task_id, generation, task, queue, first_exception AS exception_type, outcome, reason, origin AS first_failed_at,
       ended_at, failed_attempts, wasted_ms, low_seconds,
       CASE outcome WHEN 'recovered' THEN t_seconds END AS high_seconds, ladder_ms
FROM attempts WHERE outcome IN ('recovered', 'exhausted', 'discarded') AND failed_attempts > 0
"""

TIER_OUTCOMES = """
WITH counted AS (
    SELECT task, queue, previous_exception_type AS exception_type, tier, delay_ms, ended_at::DATE AS day,
           count(*) AS parked, count(*) FILTER (outcome = 'recovered') AS recovered,
           count(*) FILTER (outcome = 'exhausted') AS exhausted, 1.959963984540054 ^ 2 / count(*) AS weight,
           coalesce(sum(runtime_ms) FILTER (outcome <> 'recovered'), 0) AS wasted_ms
    FROM attempts WHERE tier IS NOT NULL AND outcome <> 'discarded' GROUP BY ALL
), rated AS (
    SELECT *, recovered / parked AS rate, sqrt(weight * (rate * (1 - rate) + weight / 4)) AS margin FROM counted
)
SELECT * EXCLUDE (weight, margin), greatest((rate + weight / 2 - margin) / (1 + weight), 0) AS rate_low,
       least((rate + weight / 2 + margin) / (1 + weight), 1) AS rate_high
FROM rated
"""

FAILURE_GROUPS = """
SELECT fingerprint, ended_at::DATE AS day, arg_min(exception_type, ended_at) AS exception_type,
       arg_min(exception_message, ended_at) AS exception_message, list(DISTINCT task) AS tasks, count(*) AS failures,
       count(DISTINCT task_id) AS tasks_touched, count(*) FILTER (outcome = 'exhausted') AS exhausted,
       min(ended_at) AS first_seen, max(ended_at) AS last_seen
FROM attempts WHERE outcome IN ('parked', 'exhausted') AND fingerprint IS NOT NULL GROUP BY ALL
"""

HOURLY = """
SELECT date_trunc('hour', occurred_at) AS hour, queue, task,
       sum(CASE WHEN kind = 'rollup' THEN ok_count
                WHEN attempt = 0 AND kind IN ('parked', 'forwarded', 'exhausted') THEN 1 ELSE 0 END) AS first_attempts,
       count(*) FILTER (kind IN ('parked', 'forwarded', 'exhausted')) AS failures,
       count(*) FILTER (kind IN ('parked', 'forwarded')) AS parked,
       count(*) FILTER (kind = 'recovered') AS recovered, count(*) FILTER (kind = 'exhausted') AS exhausted
FROM clean GROUP BY ALL
"""

#: The queries in order; all tables except ``clean`` are written.
STEPS = {
    "clean": CLEAN,
    "attempts": ATTEMPTS,
    "episodes": EPISODES,
    "tier_outcomes": TIER_OUTCOMES,
    "failure_groups": FAILURE_GROUPS,
    "hourly": HOURLY,
}


def run(source: Path, output: Path, *, memory: str = "8GB", threads: int = 2) -> dict[str, float]:
    """Write the tables into ``output``; return the seconds that each step took."""
    output.mkdir(parents=True, exist_ok=True)
    took = {}
    database = output / "work.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(f"SET memory_limit = '{memory}'; SET threads = {threads}; SET TimeZone = 'UTC'")
        connection.execute("SET preserve_insertion_order = false")
        for name, query in STEPS.items():
            begun = time.perf_counter()
            connection.execute(f"CREATE TABLE {name} AS {query.replace('{input}', str(source))}")
            if name != "clean":
                connection.execute(f"COPY {name} TO '{output / name}.parquet' (FORMAT parquet, COMPRESSION zstd)")
            took[name] = time.perf_counter() - begun
    database.unlink()
    return took


#: Columns and sums that must be equal in both outputs, by table.
SAME = {
    "attempts": "outcome, count(*), sum(attempt), sum(runtime_ms), sum(tier), sum(delay_ms)",
    "episodes": "outcome, count(*), sum(failed_attempts), sum(wasted_ms), sum(round(low_seconds * 1e6)::BIGINT), "
    "sum(round(high_seconds * 1e6)::BIGINT)",
    "tier_outcomes": "task, queue, exception_type, tier, delay_ms, sum(parked), sum(recovered), sum(exhausted), "
    "sum(wasted_ms), sum(round(rate_low * 1e6)::BIGINT), sum(round(rate_high * 1e6)::BIGINT)",
    "failure_groups": "fingerprint, count(*), sum(failures), sum(tasks_touched), sum(exhausted), max(last_seen)",
    "hourly": "queue, task, count(*), sum(first_attempts), sum(failures), sum(parked), sum(recovered), sum(exhausted)",
}


def differences(ours: Callable[[str], list[str]], theirs: Path) -> list[str]:
    """Return the differences between the pipeline's tables and DuckDB's: by table, the rows that only one has.

    ``ours`` returns the files of a table.
    """
    found = []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table, columns in SAME.items():
            query = f"SELECT {columns} FROM read_parquet({{}}) GROUP BY ALL"
            mine = query.format(ours(table))
            other = query.format([str(theirs / f"{table}.parquet")])
            for whose, only in (("the pipeline", f"{mine} EXCEPT {other}"), ("DuckDB", f"{other} EXCEPT {mine}")):
                found += [f"{table}, only by {whose}: {row}" for row in connection.execute(only).fetchall()]
    return found


def main() -> None:
    """Write the tables, print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps(run(options.input, options.output, memory=options.memory, threads=options.threads)))


if __name__ == "__main__":
    main()
