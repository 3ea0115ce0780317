"""Settings: valid ones are typed, an invalid one is one error with setting, value and hint."""

import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from celery_rmq_delay.durations import MAX_TTL_MS
from celery_rmq_delay.exceptions import RmqDelayError, SettingsError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.settings.parser import parse_settings
from celery_rmq_delay.settings.values import check_max_retries, check_queue_name
from tests.support.corpus import corpus


def test_without_settings_everything_has_a_default():
    assert parse_settings(None) == parse_settings({})
    settings = parse_settings({})
    assert settings.default.ladder == Ladder((10_000, 60_000, 600_000, 3_600_000))
    assert (settings.prefix, settings.exhausted_queue) == ("rmq_delay", "rmq_delay.exhausted")
    assert (settings.default.queue_type, settings.default.max_crashes, settings.lanes) == (None, 3, 5)
    assert (settings.apply_on_start, settings.strict, settings.events.wanted) == (True, False, "auto")
    assert settings.for_queue("any") is settings.default


def test_the_example_of_the_readme():
    settings = parse_settings(
        {
            "tiers": ["10s", 60, timedelta(minutes=10), "1h"],
            "queues": {"payments": {"tiers": ["5s", "30s", "5m"], "jitter": 0.2}},
        }
    )
    assert settings.default.ladder == Ladder((10_000, 60_000, 600_000, 3_600_000))
    payments = settings.for_queue("payments")
    assert payments is not None
    assert payments.ladder == Ladder((5_000, 30_000, 300_000), 0.2, 5)
    assert settings.uses_jitter


def test_a_queue_inherits_the_settings_that_it_does_not_set():
    settings = parse_settings(
        {
            "tiers": ["1s"],
            "jitter": 0.1,
            "lanes": 3,
            "repeat_last": True,
            "queue_type": "quorum",
            "max_crashes": 7,
            "queues": {"same": {}, "other": {"jitter": 0, "queue_type": "classic", "max_crashes": 0}},
        }
    )
    assert settings.for_queue("same") == settings.default
    other = settings.for_queue("other")
    assert other is not None
    assert other.ladder == Ladder((1000,), repeat_last=True)
    assert (other.queue_type, other.max_crashes) == ("classic", 0)


@corpus("left_alone", [False, None])
def test_a_queue_with_any_name_can_be_left_alone(left_alone):
    long = "x" * 255
    settings = parse_settings({"queues": {"theirs": left_alone, long: left_alone, "a.quarantine": left_alone}})
    assert settings.for_queue("theirs") is None
    assert settings.for_queue(long) is None


def test_the_exhausted_queue_follows_the_prefix():
    assert parse_settings({"prefix": "p"}).exhausted_queue == "p.exhausted"
    assert parse_settings({"prefix": "p", "exhausted_queue": "dead"}).exhausted_queue == "dead"


YEARS = MAX_TTL_MS / 1000
LONG = "x" * 240

WRONG: list[tuple[Any, str, str]] = [
    # settings, the name in the error, a piece of the hint
    ([], "rmq_delay", "Write a dictionary"),
    ("10s", "rmq_delay", "Write a dictionary"),
    ({"tier": ["10s"]}, "rmq_delay.tier", "Known: tiers,"),
    ({1: 2}, "rmq_delay.1", "Known: tiers,"),
    ({"tiers": []}, "rmq_delay.tiers", "at least one tier"),
    ({"tiers": ()}, "rmq_delay.tiers", "at least one tier"),
    ({"tiers": "10s"}, "rmq_delay.tiers", "Write a list"),
    ({"tiers": 10}, "rmq_delay.tiers", "Write a list"),
    ({"tiers": None}, "rmq_delay.tiers", "Write a list"),
    ({"tiers": ["10s", "-1s"]}, "rmq_delay.tiers[1]", "at least 1 ms"),
    ({"tiers": [0]}, "rmq_delay.tiers[0]", "at least 1 ms"),
    ({"tiers": [math.nan]}, "rmq_delay.tiers[0]", "finite"),
    ({"tiers": [math.inf]}, "rmq_delay.tiers[0]", "finite"),
    ({"tiers": ["soon"]}, "rmq_delay.tiers[0]", "not a delay"),
    ({"tiers": ["10s, 1m"]}, "rmq_delay.tiers[0]", "not a delay"),
    ({"tiers": [None]}, "rmq_delay.tiers[0]", "not a delay"),
    ({"tiers": [True]}, "rmq_delay.tiers[0]", "not a delay"),
    ({"tiers": [YEARS + 1]}, "rmq_delay.tiers[0]", "longest TTL"),
    ({"tiers": [YEARS], "jitter": 0.1}, "rmq_delay.jitter", "longest TTL"),
    ({"jitter": 1}, "rmq_delay.jitter", "up to, not including, 1"),
    ({"jitter": -0.1}, "rmq_delay.jitter", "up to, not including, 1"),
    ({"jitter": math.nan}, "rmq_delay.jitter", "up to, not including, 1"),
    ({"jitter": True}, "rmq_delay.jitter", "up to, not including, 1"),
    ({"jitter": "20%"}, "rmq_delay.jitter", "up to, not including, 1"),
    ({"jitter": 0.1, "lanes": 1}, "rmq_delay.lanes", "at least 2"),
    ({"lanes": 0}, "rmq_delay.lanes", "from 1 to 64"),
    ({"lanes": 65}, "rmq_delay.lanes", "from 1 to 64"),
    ({"lanes": 2.0}, "rmq_delay.lanes", "whole number"),
    ({"lanes": True}, "rmq_delay.lanes", "whole number"),
    ({"queue_type": "stream"}, "rmq_delay.queue_type", '"classic", "quorum" or None'),
    ({"max_crashes": -1}, "rmq_delay.max_crashes", "whole number"),
    ({"max_crashes": None}, "rmq_delay.max_crashes", "whole number"),
    ({"repeat_last": 1}, "rmq_delay.repeat_last", "True or False"),
    ({"apply_on_start": "yes"}, "rmq_delay.apply_on_start", "True or False"),
    ({"strict": 0}, "rmq_delay.strict", "True or False"),
    ({"events": "on"}, "rmq_delay.events", '"auto", True or False'),
    ({"prefix": ""}, "rmq_delay.prefix", "non-empty text"),
    ({"prefix": 5}, "rmq_delay.prefix", "non-empty text"),
    ({"prefix": "x" * 255}, "rmq_delay.prefix", "AMQP allows 255"),
    ({"exhausted_queue": ""}, "rmq_delay.exhausted_queue", "non-empty text"),
    ({"exhausted_queue": "ü" * 128}, "rmq_delay.exhausted_queue", "256 bytes"),
    ({"queues": ["a"]}, "rmq_delay.queues", 'Write {"queue"'),
    ({"queues": {"": {}}}, "rmq_delay.queues", "non-empty text"),
    ({"queues": {5: {}}}, "rmq_delay.queues", "non-empty text"),
    ({"queues": {"a": ["10s"]}}, "rmq_delay.queues['a']", 'Write {"tiers"'),
    ({"queues": {"a": True}}, "rmq_delay.queues['a']", "or False"),
    ({"queues": {"a": {"prefix": "x"}}}, "rmq_delay.queues['a'].prefix", "Known: tiers,"),
    ({"queues": {"a": {"lanes": 3}}}, "rmq_delay.queues['a'].lanes", "Known: tiers,"),
    ({"queues": {"a": {"tiers": []}}}, "rmq_delay.queues['a'].tiers", "at least one tier"),
    ({"queues": {"a": {"tiers": ["x"]}}}, "rmq_delay.queues['a'].tiers[0]", "not a delay"),
    ({"queues": {"a": {"jitter": 2}}}, "rmq_delay.queues['a'].jitter", "up to"),
    ({"queues": {"a": {"jitter": 0.5, "tiers": [YEARS]}}}, "rmq_delay.queues['a'].jitter", "longest TTL"),
    ({"queues": {"a": {"queue_type": "lazy"}}}, "rmq_delay.queues['a'].queue_type", "classic"),
    ({"queues": {LONG: {}}}, "rmq_delay.queues", "AMQP allows 255"),
    ({"queues": {"ü" * 120: {}}}, "rmq_delay.queues", "AMQP allows 255"),
    ({"queues": {"a.quarantine": {}}}, "rmq_delay.queues", "rename the queue"),
    ({"queues": {"a.retry.1.10s": {}}}, "rmq_delay.queues", "rename the queue"),
    ({"queues": {"rmq_delay.exhausted": {}}}, "rmq_delay.queues", "rename the queue"),
    ({"queues": {"rmq_delay.a.record": {}}}, "rmq_delay.queues", "rename the queue"),
    ({"queues": {"rmq_delay.a.record.moving": {}}}, "rmq_delay.queues", "rename the queue"),
    ({"queues": {"a.retry.1.10s.quorum": {}}}, "rmq_delay.queues", "rename the queue"),
]


@corpus("raw, setting, hint", WRONG)
def test_a_wrong_setting_is_one_error_that_names_setting_value_and_fix(raw, setting, hint):
    with pytest.raises(SettingsError) as caught:
        parse_settings(raw)
    assert caught.value.setting == setting
    assert hint in caught.value.hint
    assert str(caught.value) == f"{setting}: found {caught.value.found!r}. {caught.value.hint}"
    assert isinstance(caught.value, RmqDelayError)


def test_the_error_names_the_setting_as_the_user_wrote_it():
    with pytest.raises(SettingsError, match=r"^CELERY_RMQ_DELAY\.queues\['a'\]\.tiers\[0\]: found 'x'"):
        parse_settings({"queues": {"a": {"tiers": ["x"]}}}, "CELERY_RMQ_DELAY")
    with pytest.raises(SettingsError, match=r"^CELERY_RMQ_DELAY\.lanes: "):
        parse_settings({"lanes": 1, "jitter": 0.1}, "CELERY_RMQ_DELAY")


# -- tasks -------------------------------------------------------------------------------------------------------------


def task(**attributes):
    return SimpleNamespace(name="shop.ping", **attributes)


def test_a_task_has_its_own_tiers_with_the_jitter_of_the_queue():
    settings = parse_settings({"jitter": 0.2, "lanes": 3, "queues": {"theirs": False}})
    assert settings.task_ladder("q", task(tiers=["1s", 2])) == Ladder((1000, 2000), 0.2, 3)
    assert settings.task_ladder("q", task()) is None
    assert settings.task_ladder("theirs", task(tiers=["1s"])) is None


@corpus("tiers, hint", [("1s", "Write a list"), ([], "at least one"), (["x"], "not a delay"), ([YEARS], "longest TTL")])
def test_wrong_tiers_of_a_task_are_an_error_that_names_the_task(tiers, hint):
    settings = parse_settings({"jitter": 0.2})
    with pytest.raises(SettingsError, match=r"^tiers of task shop\.ping") as caught:
        settings.task_ladder("q", task(tiers=tiers))
    assert hint in caught.value.hint


def test_more_retries_than_tiers_are_an_error_unless_the_last_tier_repeats():
    ladder = Ladder((1000, 2000))
    check_max_retries(0, ladder, "t")
    check_max_retries(2, ladder, "t")
    check_max_retries(99, Ladder((1000,), repeat_last=True), "t")
    with pytest.raises(SettingsError, match=r"max_retries of task t: found 3\. .* 2 tiers.*repeat_last=True"):
        check_max_retries(3, ladder, "t")


@corpus("value", ["1", 0.5, True])
def test_max_retries_is_a_whole_number_or_none(value):
    for ladder in (Ladder((1000,)), Ladder((1000,), repeat_last=True)):
        with pytest.raises(SettingsError, match=rf"max_retries of task t: found {value!r}\. Write a whole number"):
            check_max_retries(value, ladder, "t")


def test_the_longest_derived_name_of_a_queue_is_checked():
    """`rmq_delay.<queue>.ladder.<8 digits>.1000.lane0` has 37 bytes beside the queue's own name."""
    settings = parse_settings({})
    check_queue_name(settings, "x" * (255 - 37))
    with pytest.raises(SettingsError, match="256 bytes"):
        check_queue_name(settings, "x" * (256 - 37))


def test_names_of_a_tasks_own_tiers_count_too():
    """`<queue>.retry.1.364d23h59m59.999s.quorum@p` has 35 bytes beside the queue's own name."""
    settings, own = parse_settings({"prefix": "p"}), Ladder((31_535_999_999,))
    check_queue_name(settings, "x" * (256 - 35))
    check_queue_name(settings, "x" * (255 - 35), tasks=[None, own])
    with pytest.raises(SettingsError, match=r"256 bytes .*: shorten the queue or the prefix"):
        check_queue_name(settings, "x" * (256 - 35), tasks=[None, own])


def test_a_management_url_is_kept_and_its_credentials_are_never_shown():
    url = "https://admin:hidden@rabbit.example:15671/path"
    settings = parse_settings({"management_url": url})
    assert settings.management_url == url
    assert "hidden" not in repr(settings)
    for wrong in ("ftp://admin:hidden@rabbit", "admin:hidden@rabbit", "https://admin:hidden@", "http://a:hidden@b:x"):
        with pytest.raises(SettingsError, match="base URL of the management API") as raised:
            parse_settings({"management_url": wrong})
        assert "hidden" not in str(raised.value)
