"""The tables of the estimator with Spark: curve, advice and what-if of failure episodes with a known truth."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celery_rmq_delay.analytics import synth
from celery_rmq_delay.analytics.estimate.lateness import lateness_of
from celery_rmq_delay.analytics.estimate.options import Options
from celery_rmq_delay.analytics.estimate.shares import shares
from celery_rmq_delay.analytics.schema import EPISODES, EXCEPTION_ADVICE, LADDER_ADVICE, RECOVERY_CURVE, WHAT_IF
from celery_rmq_delay.analytics.synth.failing import RECOVERED, draw_episodes, world_of
from celery_rmq_delay.analytics.tables.aggregation import counted_intervals, intervals_of, late_of
from celery_rmq_delay.analytics.tables.exception_advice import exception_advice
from celery_rmq_delay.analytics.tables.ladder_advice import (
    ladder_advice,
    recovery_curve,
    today_of,
    todays_ladders,
    what_if,
)
from celery_rmq_delay.exceptions import SettingsError
from tests.support.recoveries import TRUTHS, Seen, exponential, inspected, ms, rows, seen

MARCH = datetime(2026, 3, 2, tzinfo=timezone.utc)
LADDERS = [(5, 30, 120, 600, 3600), (30, 300, 3600), (10, 60, 600, 1800)]
NAMES = {"task": "shop.pay", "queue": "payments", "exception_type": "ConnectionError"}


def table(found, ladders=LADDERS, exact=0, **more):
    """Return failure episodes as an Arrow table; ``exact``: how many waits of each were exact delays.

    ``more``: other values of columns, for all rows.
    """
    count = len(found.low)
    over = ~np.isnan(found.high)
    began = np.datetime64(MARCH.replace(tzinfo=None), "us") + found.cluster * np.timedelta64(3600, "s")
    columns = {
        "task_id": [str(each) for each in range(count)],
        "generation": pa.array(np.zeros(count), pa.int32()),
        **{name: [value] * count for name, value in {**NAMES, **more}.items()},
        "outcome": np.where(over, "recovered", "exhausted"),
        "reason": pa.nulls(count, pa.string()),
        "first_failed_at": pa.array(began, pa.timestamp("us", "UTC")),
        "ended_at": pa.array(began, pa.timestamp("us", "UTC")),
        "failed_attempts": pa.array(found.failed_attempts, pa.int32()),
        "wasted_ms": pa.array(np.zeros(count), pa.int64()),
        "low_seconds": found.low,
        "high_seconds": pa.array(found.high, mask=~over),
        "ladder_ms": [[int(1000 * each) for each in ladders[which]] for which in found.ladder],
        "max_retries": pa.array([len(ladders[which]) for which in found.ladder], pa.int32()),
        "waited_ms": pa.array((1000 * found.waited).round().astype(np.int64)),
        "exact_waits": pa.array(np.full(count, exact), pa.int32()),
    }
    assert list(columns) == EPISODES.fieldNames()
    return pa.table(columns)


def stored(spark, folder, *tables):
    folder.mkdir(exist_ok=True)
    for at, each in enumerate(tables):
        pq.write_table(each, folder / f"{at}.parquet")
    return spark.read.schema(EPISODES).parquet(str(folder))


#: Half of the failures of the last one never end.
WORLDS = {"exponential": 0.0, "lognormal": 0.0, "bimodal": 0.0, "half hard": 0.5}
EPISODES_OF_EACH = 100_000


def world():
    """Return a synthetic history of tasks whose failures last by one distribution each."""
    known = [
        synth.Dependency(name, synth.NAMED.get(name, synth.NAMED["exponential"]), f"{name} error", "", hard)
        for name, hard in WORLDS.items()
    ]
    queue = synth.Queue("payments", (5000, 30_000, 120_000, 600_000, 3_600_000), (10_000, 60_000, 300_000, 1_800_000))
    tasks = [synth.Task(name, "payments", name) for name in WORLDS]
    return synth.Spec(days=30, shop=synth.Shop(tuple(known), (queue,), tuple(tasks)), outages="independent")


def drawn(spec):
    """Return the failure episodes of `world`, the same number of each task, and their attempts: task -> seconds."""
    found = draw_episodes(spec, world_of(spec), np.random.default_rng(1), 1_800_000, (0.0, 1.0))
    found = found[found.is_informative]
    chosen = np.concatenate([np.flatnonzero(found.task == at)[:EPISODES_OF_EACH] for at in range(len(WORLDS))])
    found = found[chosen]
    assert len(found) == EPISODES_OF_EACH * len(WORLDS)
    every, over = np.arange(len(found)), found.outcome == RECOVERED
    low = found.ends[every, found.attempts - np.where(over, 2, 1)]
    high = np.where(over, found.ends[every, found.attempts - 1], np.nan)
    cluster = (found.origin // 3600).astype(np.int64)
    waited = np.zeros(len(found))
    seen_ones = Seen(low, high, cluster, found.attempts - over, np.zeros(len(found), np.int64), waited)
    names = np.array(list(WORLDS))[found.task]
    looks = {name: np.concatenate([low[names == name], high[(names == name) & over]]) for name in WORLDS}
    return seen_ones, names, looks


@pytest.mark.slow
def test_the_curves_of_100_000_episodes_each_are_the_truth_wherever_the_ladders_see(spark, tmp_path):
    spec = world()
    found, names, looks = drawn(spec)
    episodes = table(found)
    for column in ("task", "exception_type"):
        episodes = episodes.set_column(EPISODES.fieldNames().index(column), column, pa.array(names))
    options = Options(bootstrap_rounds=20)
    curve = recovery_curve(stored(spark, tmp_path, episodes), options)
    assert curve.schema == RECOVERY_CURVE
    rows = curve.toPandas().set_index(["scope", "name", "t_seconds"]).sort_index()
    assert set(rows.index.droplevel(2)) == {(scope, name) for scope in ("task", "exception") for name in WORLDS}
    for dependency in spec.shop.dependencies:
        name = dependency.name
        of_task = rows.loc[("task", name)]
        times = of_task.index.to_numpy()
        counts = np.bincount(options.grid.cells(looks[name]), minlength=options.grid.points + 1)[1 : len(times) + 1]
        truth = (1 - dependency.hard) * dependency.lasting.over(times)
        # With fewer attempts, chance alone is more than 0.03.
        visible = counts >= EPISODES_OF_EACH // 200
        error = np.abs(of_task["recovered_share"] - truth)[visible].max()
        print(f"{name}: {visible.sum()} points, error {error:.4f}")
        assert visible.sum() > 10
        assert error < 0.03
        assert (of_task["share_low"] <= of_task["recovered_share"]).all()
        assert (of_task["recovered_share"] <= of_task["share_high"]).all()
        assert times.max() < 2 * looks[name].max()


def test_the_intervals_of_failures_are_those_of_the_grid(spark, tmp_path):
    options = Options(bootstrap_rounds=0)
    found = seen(TRUTHS["half hard"], 2_000, LADDERS, seed=1, clusters=20)
    counted = counted_intervals(stored(spark, tmp_path, table(found)), ["queue"], options, ("task",)).toPandas()
    columns = ["low", "high", "cluster", "is_exhausted", "count", "retries"]

    def plain(frame):
        begins_at_0 = frame.assign(cluster=frame["cluster"] - frame["cluster"].min())
        return sorted(map(tuple, begins_at_0[columns].to_numpy().tolist()))

    assert plain(counted) == plain(rows(found, options))


def test_advice_for_a_queue_and_for_those_of_its_tasks_that_have_enough_data(spark, tmp_path):
    # Today's ladder comes last; earlier ladders had attempts between its tiers.
    past = seen(exponential(200), 20_000, LADDERS, seed=4, clusters=100)
    today = seen(exponential(200), 5000, [LADDERS[0]], seed=5, clusters=24)
    late = table(today, [LADDERS[0]])
    begun = pa.array(late["first_failed_at"].to_numpy() + np.timedelta64(100, "h"), pa.timestamp("us", "UTC"))
    late = late.set_column(EPISODES.fieldNames().index("first_failed_at"), "first_failed_at", begun)
    rare = seen(exponential(200), 30, LADDERS, seed=6, clusters=10)
    other = seen(exponential(200), 30, LADDERS, seed=7, clusters=10)
    episodes = stored(
        spark, tmp_path, table(past), late, table(rare, task="shop.rare"), table(other, queue="mails", task="shop.mail")
    )
    advice = ladder_advice(episodes, Options(bootstrap_rounds=50))
    assert advice.schema == LADDER_ADVICE
    rows = {(row.queue, row.task): row for row in advice.collect()}
    # The only task of the queue mails has the same failures as the queue.
    assert set(rows) == {("payments", None), ("payments", "shop.pay"), ("mails", None)}
    whole = rows["payments", None]
    assert whole.enough_data
    assert whole.current_ms == list(ms(LADDERS[0]))
    assert whole.counted > 4000
    assert whole.current_attempts_low <= whole.current_attempts <= whole.current_attempts_high
    assert whole.advised_attempts < whole.current_attempts_low
    assert whole.advised_attempts_low <= whole.advised_attempts <= whole.advised_attempts_high
    assert whole.advised_recovery >= whole.current_recovery - 0.01
    assert whole.advised_mean_s <= 1.3 * whole.current_mean_s
    assert whole.lost <= 0.005 * whole.recoveries
    assert whole.backtest_failures > 50
    assert whole.backtest_advised_attempts < whole.backtest_current_attempts
    assert whole.refused_ms is None
    poor = rows["mails", None]
    assert not poor.enough_data
    assert "30 retried failures" in poor.reason
    assert poor.advised_ms is None
    assert poor.advised_recovery is None


def test_todays_figures_are_counts_of_the_failures_that_had_todays_ladder(spark, tmp_path):
    random, ladder = np.random.default_rng(1), (10, 60, 600, 3600)
    # 382 recover at the first retry, 12 at the second one, 6 never: an estimate is not needed.
    lasts = np.concatenate([np.full(382, 5.0), np.full(12, 50.0), np.full(6, np.inf)])
    found = inspected(lasts, random.integers(0, 200, 400), [ladder], random, jitter=0)
    older = inspected(np.full(500, 4.0), random.integers(0, 100, 500), [(5, 30)], random, jitter=0)
    episodes = stored(spark, tmp_path, table(found, [ladder]), table(older, [(5, 30)]))
    (whole,) = ladder_advice(episodes, Options(bootstrap_rounds=50)).where("task is null").collect()
    assert whole.current_ms == list(ms(ladder))
    assert 380 <= whole.counted <= 400
    assert whole.current_recovery == pytest.approx(394 / 400, abs=0.003)
    assert whole.current_attempts == pytest.approx((382 + 24 + 24) / 400, abs=0.02)
    assert whole.current_mean_s == pytest.approx((382 * 10.2 + 12 * 70.4) / 394, rel=0.05)
    assert whole.current_median_s == pytest.approx(10.2, rel=0.05)
    assert whole.current_p99_s == pytest.approx(70.4, rel=0.05)
    assert 0.95 < whole.current_recovery_low < whole.current_recovery < whole.current_recovery_high < 1


def test_failures_with_exact_delays_are_not_counted_as_those_of_a_ladder(spark, tmp_path):
    random, ladder = np.random.default_rng(1), (10, 60, 600)
    own = inspected(np.full(500, 5.0), random.integers(0, 200, 500), [ladder], random, jitter=0)
    exact = inspected(np.full(300, 400.0), random.integers(0, 200, 300), [(300,) * 3], random, jitter=0)
    both = stored(spark, tmp_path, table(own, [ladder]), table(exact, [ladder], exact=2))
    (whole,) = ladder_advice(both, Options(bootstrap_rounds=20)).where("task is null").collect()
    assert whole.episodes == 800
    assert 490 <= whole.counted <= 500
    assert whole.current_attempts == pytest.approx(1, abs=0.01)
    (whole,) = ladder_advice(both.where("exact_waits > 0"), Options(bootstrap_rounds=20)).collect()
    assert (whole.enough_data, whole.advised_ms) == (False, None)
    assert "exact delays" in whole.reason


def test_the_row_of_a_queue_is_about_the_tasks_that_have_its_ladder(spark, tmp_path):
    random = np.random.default_rng(1)
    common = inspected(np.full(500, 5.0), random.integers(0, 200, 500), [(10, 60)], random, jitter=0)
    other = inspected(np.full(300, 400.0), random.integers(0, 200, 300), [(300, 600)], random, jitter=0)
    tables = table(common, [(10, 60)]), table(other, [(300, 600)], task="shop.refund")
    rows = ladder_advice(stored(spark, tmp_path, *tables), Options(bootstrap_rounds=0)).collect()
    assert {row.task: (row.episodes, row.current_ms) for row in rows} == {
        None: (500, [10_000, 60_000]),
        "shop.pay": (500, [10_000, 60_000]),
        "shop.refund": (300, [300_000, 600_000]),
    }


def one_what_if(episodes, options):
    return what_if(episodes, {"payments": [(60_000,)]}, options)


@pytest.mark.slow
def test_replays_are_in_no_curve_and_in_no_advice(spark, tmp_path):
    first = seen(TRUTHS["exponential"], 400, LADDERS, seed=1)
    replayed = table(seen(TRUTHS["half hard"], 400, LADDERS, seed=2))
    generation = replayed.schema.get_field_index("generation")
    replayed = replayed.set_column(generation, "generation", pa.array(np.ones(400), pa.int32()))
    both = stored(spark, tmp_path / "both", table(first), replayed)
    alone = stored(spark, tmp_path / "alone", table(first))
    options = Options(bootstrap_rounds=0)
    for make in (recovery_curve, ladder_advice, one_what_if):
        one, other = (make(rows, options).toPandas() for rows in (both, alone))
        columns = ["scope", "name", "t_seconds"] if "scope" in one else ["queue"]
        one, other = (each.sort_values(columns, ignore_index=True) for each in (one, other))
        assert len(one) > 0
        assert one.to_json() == other.to_json()
    assert exception_advice(both, options).collect() == exception_advice(alone, options).collect()


@pytest.mark.slow
def test_only_frequent_tasks_and_exceptions_have_a_curve(spark):
    rows = [episode(at, exception_type=f"Error{at // 30}" if at < 3_600 else f"Rare{at}") for at in range(4_000)]
    curve = recovery_curve(spark.createDataFrame(rows, EPISODES), Options(bootstrap_rounds=0)).toPandas()
    names = curve[curve["scope"] == "exception"]["name"].unique()
    assert len(names) == 100
    assert all(name.startswith("Error") for name in names)


def exceptions(spark):
    """Return failure episodes: some exceptions never recover, some always, one on one day only, one in few outages."""
    never = {"outcome": "exhausted", "failed_attempts": 4, "high_seconds": None, "low_seconds": 635.0, "wasted_ms": 400}
    soon = {"failed_attempts": 1, "low_seconds": 0.0, "high_seconds": 5.5, "waited_ms": 5000}
    stories = {
        "KeyError": never,
        "TimeoutError": soon,
        "StillWaiting": soon,
        "OtherLadder": soon,
        "FewOutages": soon,
        "Revived": never,
        "TooFew": soon,
        "ConnectionError": {},
        "OneDay": never,
        "GaveUp": {**never, "failed_attempts": 1, "reason": "gave_up"},
    }
    rows = []
    for name, story in stories.items():
        for at in range(800 if story is soon and name != "TooFew" else 120):
            # An hour from one failure to the next; those of "FewOutages" are of five outages.
            hours = 24 * (at % 5) if name == "FewOutages" else at
            began = MARCH + (timedelta(minutes=at) if name == "OneDay" else timedelta(hours=hours))
            of_it = never if name == "ConnectionError" and at < 10 else story
            rows.append(episode(f"{name}-{at}", exception_type=name, first_failed_at=began, **of_it))
    rows += [episode(f"few-{at}", exception_type="Few", **never) for at in range(99)]
    replay = {"generation": 1, "failed_attempts": 0, "exception_type": None, "low_seconds": 0.0, "high_seconds": None}
    rows += [episode(f"Revived-{at}", **replay) for at in range(3)]
    waiting = {"outcome": "open", "ended_at": None, "failed_attempts": 3, "high_seconds": None, "waited_ms": None}
    rows += [episode("waiting", exception_type="StillWaiting", **waiting)]
    rows += [episode("other", exception_type="OtherLadder", **{**soon, "ladder_ms": [60_000, 3_600_000]})]
    return spark.createDataFrame(rows, EPISODES)


@pytest.mark.slow
def test_advice_about_exceptions_that_never_recover_and_those_that_need_no_late_tier(spark):
    found = exception_advice(exceptions(spark), Options(bootstrap_rounds=0))
    assert [(each.name, each.dataType) for each in found.schema] == [
        (each.name, each.dataType) for each in EXCEPTION_ADVICE
    ]
    rows = {row.exception_type: row for row in found.collect()}
    assert set(rows) == {"KeyError", "TimeoutError"}
    never, short = rows["KeyError"], rows["TimeoutError"]
    assert (never.kind, never.failures, never.recovered, never.retries, never.wasted_ms) == (
        "give_up", 120, 0, 360, 36_000,
    )  # fmt: skip
    assert 0.02 < never.share_high < 0.04
    assert never.longest_s == 635
    assert (short.kind, short.failures, short.recovered) == ("fewer_tiers", 800, 800)
    assert (short.longest_s, short.needless_ms) == (5.5, [30_000, 600_000])


def episode(number, **more):
    """Return a failure episode as a row of `EPISODES`: recovered at the second retry, half a second late each time."""
    row = {
        "task_id": f"task-{number}",
        "generation": 0,
        "task": "shop.pay",
        "queue": "payments",
        "exception_type": "ConnectionError",
        "outcome": "recovered",
        "reason": None,
        "first_failed_at": MARCH,
        "ended_at": MARCH,
        "failed_attempts": 2,
        "wasted_ms": 0,
        "low_seconds": 5.5,
        "high_seconds": 36.0,
        "ladder_ms": [5000, 30_000, 600_000],
        "max_retries": 3,
        "waited_ms": 35_000,
        "exact_waits": 0,
    }
    return tuple({**row, **more}.values())


UNDECODABLE = {"task": "", "ladder_ms": [], "max_retries": None, "outcome": "exhausted", "reason": "undecodable"} | {
    "failed_attempts": 1,
    "low_seconds": 0.0,
    "high_seconds": None,
    "waited_ms": None,
}
STORIES = {
    "plain": ([{}], (5000, 30_000, 600_000), 1.0),
    "fewer retries than tiers": ([{"max_retries": 2}], (5000, 30_000), 1.0),
    "a last tier that repeats": ([{"max_retries": 4}], (5000, 30_000, 600_000, 600_000), 1.0),
    "no limit of retries": ([{"max_retries": None, "failed_attempts": 5, "waited_ms": None}], None, 0.0),
    # The ladder has 35 s, but tasks asked for 100 s and 200 s.
    "exact delays": (
        [{"waited_ms": 300_000, "low_seconds": 101.0, "high_seconds": 302.0}],
        (5000, 30_000, 600_000),
        2.0,
    ),
    "more undecodable messages than tasks": ([UNDECODABLE, UNDECODABLE, {}], (5000, 30_000, 600_000), 1.0),
    "undecodable messages only": ([UNDECODABLE], (), 0.0),
    "retried by hand at once": ([{"low_seconds": 1.0, "high_seconds": 2.0}], (5000, 30_000, 600_000), 0.0),
}


def test_the_ladder_of_a_queue_is_derived_from_its_history(spark):
    rows = [episode(at, queue=queue, **more) for queue, story in STORIES.items() for at, more in enumerate(story[0])]
    episodes = spark.createDataFrame(rows, EPISODES)
    found = todays_ladders(episodes, ["queue"]).toPandas()
    counted = counted_intervals(episodes, ["queue"], Options(bootstrap_rounds=0)).toPandas()
    for queue, (_, ladder_ms, late_s) in STORIES.items():
        today = today_of(found[found["queue"] == queue])
        assert today.is_endless == (ladder_ms is None), queue
        assert ladder_ms in (None, today.ladder_ms), queue
        assert late_after_two(counted[counted["queue"] == queue]) == pytest.approx(late_s), queue


def late_after_two(rows):
    """Return the median lateness of two retries by the rows of a queue; 0 if it is not known."""
    if rows.empty:
        return 0.0
    options = Options(bootstrap_rounds=0)
    intervals = intervals_of(rows, options)
    return lateness_of(late_of(rows), intervals, shares(intervals, options)).median(2)[1]


def test_ladders_that_the_user_names(spark, tmp_path):
    found, few = seen(TRUTHS["exponential"], 20_000, LADDERS, seed=8), seen(TRUTHS["exponential"], 150, LADDERS, seed=8)
    episodes = stored(spark, tmp_path, table(found), table(few, queue="mails"))
    ladders = {"payments": [(30_000, 300_000), (30_000, 300_000, 3_600_000)], "mails": [(1000,)], "unknown": [(1000,)]}
    table_found = what_if(episodes, ladders, Options(bootstrap_rounds=50))
    assert table_found.schema == WHAT_IF
    poor, short, full = sorted(table_found.collect(), key=lambda row: len(row.ladder_ms))
    assert short.recovery == pytest.approx(TRUTHS["exponential"].share(330.0), abs=0.03)
    assert short.recovery_low <= short.recovery <= short.recovery_high
    assert short.exhausted == pytest.approx(1 - short.recovery)
    assert full.recovery > short.recovery
    assert (full.enough_data, full.reason) == (True, None)
    assert full.attempts == pytest.approx(1 + sum(1 - TRUTHS["exponential"].share(t) for t in (30.0, 330.0)), abs=0.05)
    assert (poor.queue, poor.enough_data, poor.recovery) == ("mails", False, None)
    assert poor.reason == "not enough data: 150 retried failures, at least 200 are needed"


def test_no_episodes_give_empty_tables_and_ladders_that_no_broker_could_hold_are_refused(spark):
    nothing = spark.createDataFrame([], EPISODES)
    for make in (recovery_curve, ladder_advice, one_what_if):
        assert make(nothing, Options()).count() == 0
    for ladder in ((), (0,), (-5,), (1.5,), (10**18,)):
        with pytest.raises(SettingsError, match="ladder of payments"):
            what_if(nothing, {"payments": [ladder]}, Options())
