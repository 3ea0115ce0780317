"""Invalid settings: each is one error that names the setting, and no other exception is raised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.contrib.django.conf import Conf, _checked
from celery_rmq_delay.durations import MAX_TTL_MS, format_ms, parse_ms
from celery_rmq_delay.exceptions import HistoryError, RmqDelayError, SettingsError
from celery_rmq_delay.history.url import checked, problem_of, shown, without_secrets
from celery_rmq_delay.names import MAX_NAME_BYTES, delay_queue
from celery_rmq_delay.settings.parser import _QUEUE_KEYS, _TOP_KEYS, parse_settings
from tests.support import hostile
from tests.support.corpus import corpus

anything = hostile.settings_values
queue = st.dictionaries(st.sampled_from(_QUEUE_KEYS) | hostile.texts, anything, max_size=3)
top = st.dictionaries(
    st.sampled_from(_TOP_KEYS) | hostile.texts, anything | st.dictionaries(hostile.texts, queue | anything, max_size=2)
)


@given(top | anything)
def test_settings_are_taken_or_one_error_names_the_setting(raw):
    try:
        settings = parse_settings(raw)
    except SettingsError as error:
        assert error.setting.startswith("rmq_delay")
        assert error.hint
        return
    for name, own in settings.queues.items():
        if own is None:
            continue
        for tier_index in range(1, len(own.ladder) + 1):
            for ttl in own.ladder.lane_ttls(tier_index):
                assert 0 < ttl <= MAX_TTL_MS
                assert len(delay_queue(name, tier_index, ttl, settings.prefix).encode()) <= MAX_NAME_BYTES


django = st.dictionaries(
    st.sampled_from([name.upper() for name in vars(Conf())]) | hostile.texts | st.integers(),
    anything
    | st.dictionaries(hostile.texts | st.sampled_from(["mail", "webhook", "kinds", "every_minutes"]), anything),
    max_size=4,
)


@given(django | anything)
def test_settings_of_django_are_taken_or_one_error_names_the_setting(raw):
    try:
        _checked(raw)
    except SettingsError as error:
        assert error.setting.startswith("RMQ_DELAY")
        assert error.hint


@given(anything)
def test_a_delay_is_milliseconds_or_an_error(value):
    try:
        found = parse_ms(value, "tiers")
    except SettingsError:
        return
    assert 1 <= found <= MAX_TTL_MS
    assert parse_ms(format_ms(found), "again") == found


@corpus("text", ["9" * 100_000 + "s", "1s" * 50_000 + "x", "1." * 50_000 + "s", "µ" * 100_000, "1h" * 99 + "x"])
def test_long_texts_are_no_delays_and_take_no_time(text):
    with pytest.raises(SettingsError):
        parse_ms(text, "tiers")


SECRET = "hunter2hunter2"
urls = st.one_of(
    hostile.texts,
    st.tuples(
        st.sampled_from(["s3", "gs", "file", "abfs", "hdfs", "http", "S3"]),
        hostile.texts,
        st.sampled_from(["/a", "?region=x", "#f", "@h", ":1", "?a=b@c"]),
    ).map(lambda parts: f"{parts[0]}://{parts[1]}{parts[2]}"),
)


@given(urls | anything)
def test_a_place_for_history_is_checked_and_shown(url):
    problem = problem_of(url)
    try:
        assert checked(url) == url
        assert problem is None
    except HistoryError as error:
        assert problem is not None
        assert problem in str(error)
    shown(url).encode("utf-8", "surrogatepass")
    if isinstance(url, str):
        without_secrets(f"cannot open {url}", url)


@given(
    st.sampled_from(["s3", "abfs", "hdfs", "gs"]),
    st.text("ab:/?#&=%+ .", max_size=12),
    st.sampled_from(["", "?region=x"]),
)
def test_no_password_of_a_place_is_shown(scheme, rest, query):
    url = f"{scheme}://user:{SECRET}{rest}@host/bucket{query}"
    assert SECRET not in shown(url)
    assert SECRET not in without_secrets(f"cannot open {url}", url)
    try:
        checked(url)
    except RmqDelayError as error:
        assert SECRET not in str(error)
