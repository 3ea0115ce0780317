"""Every table equals that of the reference, for files of random small histories.

Spark reads all histories together: each has its own days, and no table has rows over several days.
"""

from collections import Counter
from datetime import date, timedelta

import pandas as pd
import pytest

from celery_rmq_delay.analytics.storage.readers import read_events
from celery_rmq_delay.analytics.tables.attempts import attempts
from celery_rmq_delay.analytics.tables.bursts import MINUTES, Bursts
from celery_rmq_delay.analytics.tables.cleaning import by_task, clean
from celery_rmq_delay.analytics.tables.counts import counted_events
from celery_rmq_delay.analytics.tables.merging import of_day, over_midnight
from celery_rmq_delay.analytics.tables.outcomes import failure_groups, hourly, tier_outcomes
from tests.support.spark import reference
from tests.support.spark.frames import all_episodes, assert_same, incidents, rows
from tests.support.spark.random_files import NOW, write
from tests.support.spark.random_histories import DAYS, first_day

Row = reference.Row

HISTORIES = 30
#: Low thresholds, so that small histories have many incidents.
SMALL = Bursts(factor=6, evidence=4, least=3, gap_minutes=4)


class Found:
    """The results of Spark for the histories: all at once, distinguished by their days."""

    def __init__(self, spark, folder):
        read = read_events(spark, str(folder))
        cleaned = clean(read.events, NOW)
        both = attempts(by_task(cleaned.events, partitions=2))
        made, counts = both.to_frame().cache(), both.to_counts().cache()
        frames = {
            "attempts": made,
            "episodes": all_episodes(made),
            "tier_outcomes": tier_outcomes(counts),
            "incidents": incidents(made, counts),
            "small_incidents": incidents(made, counts, SMALL),
            "failure_groups": failure_groups(counts),
            "hourly": hourly(counts),
            "quarantine": cleaned.quarantine.unionByName(read.rejected),
        }
        self.tables = {name: rows(each) for name, each in frames.items()}
        self.events, self.copies = counted_events(counts)
        counts.unpersist()
        made.unpersist()

    def of(self, seed, table):
        """Return the rows of a table on the days of a history."""
        days = {first_day(seed) + timedelta(days=number) for number in range(DAYS)}
        return [row for row in self.tables[table] if row["day"] in days]


def expected_incidents(made, events, bursts):
    """Return the incidents in the reference's counts."""
    parts = []
    for day, some in reference.counts(made, events).items():
        start = (day - date(1970, 1, 1)).days * MINUTES
        parts += of_day(pd.DataFrame(some), start, bursts)
    return over_midnight(parts, bursts)


def described(made, events, bursts):
    return [reference.incident(made, one) for one in expected_incidents(made, events, bursts)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    return folder, [write(folder, seed) for seed in range(HISTORIES)]


@pytest.fixture(scope="module")
def found(shared_spark, written):
    return shared_spark.run(lambda spark: Found(spark, written[0]))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_table_equals_the_reference(found, written, seed):
    history = written[1][seed]
    events, bad = reference.clean(history.rows, NOW)
    made = reference.attempts(events)
    assert Counter(row["reason"] for row in found.of(seed, "quarantine")) == bad + history.bad
    for name, expected, key in (
        ("attempts", made, reference.ATTEMPT_KEY),
        ("episodes", reference.episodes(made), reference.EPISODE_KEY),
        ("tier_outcomes", reference.tier_outcomes(made), reference.TIER_KEY),
        ("incidents", described(made, events, Bursts()), reference.INCIDENT_KEY),
        ("small_incidents", described(made, events, SMALL), reference.INCIDENT_KEY),
        ("failure_groups", reference.failure_groups(made), reference.GROUP_KEY),
        ("hourly", reference.hourly(made, events), reference.HOURLY_KEY),
    ):
        assert_same(found.of(seed, name), expected, key)


def test_copies_are_counted_and_not_put_aside(found, written):
    histories = [reference.clean(history.rows, NOW) for history in written[1]]
    copies = sum(
        len(history.rows) - len(events) - bad.total()
        for history, (events, bad) in zip(written[1], histories, strict=True)
    )
    assert (found.events, found.copies) == (sum(len(events) for events, _ in histories), copies)
    assert copies > 0


def test_the_random_histories_contain_every_kind_of_fault(written):
    seen: Counter[str] = Counter()
    for history in written[1]:
        events, bad = reference.clean(history.rows, NOW)
        made = reference.attempts(events)
        seen += bad + history.bad
        for row in reference.episodes(made):
            seen[f"failure episode {row['outcome']}"] += 1
            seen["failure episode of unknown origin"] += row["first_failed_at"] is None
            seen["failure episode of a replay"] += row["generation"] > 0
        seen["attempt of no failure episode"] += sum(row["episode"] is None for row in made)
        seen["incident"] += len(expected_incidents(made, events, Bursts()))
        small = expected_incidents(made, events, SMALL)
        seen["incident over midnight"] += sum(one.first // MINUTES < one.last // MINUTES for one in small)
    assert min(seen.values()) >= 2, seen
    assert len(seen) == 13 + 9, f"13 reasons and 9 others, found {sorted(seen)}"
