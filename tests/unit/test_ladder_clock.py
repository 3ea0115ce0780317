"""The ladder clock's arithmetic, and the state of the app after it."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rmq_delay import RetryableTask
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.exceptions import DelayError, RmqDelayError, SettingsError
from celery_rmq_delay.testing import LadderClock
from celery_rmq_delay.testing.clock import VARIABLE, Scale, clock_from
from tests.support.apps import app_of

HOUR = 3_600_000
DELAYS = st.sets(st.integers(1, 30 * 24 * HOUR), min_size=1, max_size=8)


def make_app(**settings):
    return app_of({"tiers": ["10s", "1m", "10m", "1h"], **settings})


@pytest.fixture
def app():
    app = make_app(queues={"mails": {"tiers": ["5s", "30s"]}, "left_alone": False})

    @app.task(base=RetryableTask, name="own", tiers=["1s", "2h"], shared=False)
    def own():
        """Has tiers of its own."""

    yield app
    app.close()


@example(delays={10_000, HOUR}, shortest=20, span=0)
@example(delays={5, 10}, shortest=20, span=0)
@given(delays=DELAYS, shortest=st.integers(1, 50), span=st.integers(0, 1000))
def test_the_order_is_kept_within_bounds_and_no_delay_grows(delays, shortest, span):
    longest = shortest + span
    scale = Scale.of(delays, shortest_ms=shortest, longest_ms=longest)
    ordered = sorted(delays)
    short = [scale.shorten(delay) for delay in ordered]
    assert short == sorted(short)
    assert short[-1] == min(longest, ordered[-1])
    assert all(min(delay, shortest) <= after <= delay for delay, after in zip(ordered, short, strict=True))


def test_ratios_are_kept_where_they_fit_and_else_shrink_alike():
    scale = Scale.of({HOUR, 2 * HOUR, 4 * HOUR}, shortest_ms=20, longest_ms=200)
    assert [scale.shorten(hours * HOUR) for hours in (1, 2, 4)] == [50, 100, 200]
    scale = Scale.of({10_000, 60_000, 600_000, HOUR}, shortest_ms=20, longest_ms=200)
    assert [scale.shorten(delay) for delay in (10_000, 60_000, 600_000, HOUR)] == [20, 40, 99, 200]
    assert scale.shorten(24 * HOUR) == 693  # also one longer than any tier is short
    scale = Scale.of({50, 150}, shortest_ms=20, longest_ms=200)
    assert [scale.shorten(delay) for delay in (50, 150)] == [50, 150]


def test_all_ladders_of_the_app_are_short_inside_of_the_block_only(app, rmq_clock):
    delay, before = state_of(app), dict(vars(state_of(app)))
    own = app.tasks["own"]
    with LadderClock(app) as clock:
        assert delay.settings.default.ladder.tiers_ms == tuple(
            map(clock.scale.shorten, (10_000, 60_000, 600_000, HOUR))
        )
        assert delay.ladder("mails", own).tiers_ms == (20, 200)  # the shortest and the longest of the app
        assert delay.settings.for_queue("left_alone") is None
        assert clock.planned.ladder("mails", own).tiers_ms == (1000, 2 * HOUR)
    assert {name: vars(delay)[name] for name in before} == before
    assert delay.ladder("mails", own).tiers_ms == (1000, 2 * HOUR)
    rmq_clock(app, longest="1s")
    assert delay.ladder("mails", own).tiers_ms == (20, 1000)


def test_tasks_that_are_defined_inside_of_the_block_have_short_tiers_too(app):
    with LadderClock(app) as clock:

        @app.task(base=RetryableTask, tiers=["1h"], shared=False)
        def late():
            """A task that is defined later."""

        assert state_of(app).ladder("celery", late).tiers_ms == (clock.scale.shorten(HOUR),)


def test_a_delay_that_is_too_long_for_the_settings_is_refused_as_without_the_clock():
    app = make_app(exact_levels=10)  # 1023 s
    delay = state_of(app)
    with LadderClock(app):
        with pytest.raises(DelayError, match="longest delay"):
            delay.exact.check(2_000_000, "countdown", 2000)
        delay.exact.check(1_000_000, "countdown", 1000)
        assert delay.exact.longest_ms == 1_023_000
    app.close()


def test_two_clocks_native_queues_and_a_shortest_above_the_longest_are_refused(app):
    with LadderClock(app) as clock, pytest.raises(RmqDelayError, match="already shortened"):
        clock.__enter__()
    with pytest.raises(SettingsError, match=r"shortest: found '1s'. Write at most the longest, 200ms"):
        LadderClock(app, shortest="1s")
    native = make_app(queues={"steady": {"tiers": ["5s", "5s"], "retry": "native"}})
    with pytest.raises(SettingsError, match='write short tiers, or "retry": "ladder"'):
        LadderClock(native)
    native.close()


def test_another_process_gets_the_same_clock_from_the_environment(app):
    clock = LadderClock(app, longest="150ms")
    other = make_app()
    with clock_from(clock.environment, other) as theirs:
        assert theirs.scale == clock.scale
        assert state_of(other).settings.default.ladder.tiers_ms[-1] == clock.scale.shorten(HOUR)
    other.close()


@pytest.mark.parametrize("text", [None, "", "200ms", "[1, 2]", json.dumps([0, 1, 1, 1]), json.dumps(["a", 1, 1, 1])])
def test_the_error_for_an_environment_without_a_clock_names_the_function(app, text):
    with pytest.raises(SettingsError, match=r"CELERY_RMQ_DELAY_TEST_CLOCK: found .*LadderClock\.environment"):
        clock_from({} if text is None else {VARIABLE: text}, app)
