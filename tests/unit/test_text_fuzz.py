"""Hostile texts: redaction, fingerprints and policies take time that is linear in the text."""

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from celery_rmq_delay.events.fingerprint import fingerprint, normalise_message, top_frame, without_retry
from celery_rmq_delay.headers import bounded, printable
from celery_rmq_delay.management.records import Policy, pattern_of
from celery_rmq_delay.redaction import DEFAULT, MAX_TEXT, Redaction
from celery_rmq_delay.redaction.keys import DEFAULT_KEYS
from tests.support import hostile
from tests.support.corpus import corpus
from tests.support.effort import assert_linear

#: Texts that are hard for a pattern when repeated.
STONES = (
    "password", "password=", "password = ", "--password ", "pass", "token_", "token.", 'secret\\"', "card ", "key", "a",
    "password='", "://a@", "{'token': ", "token=(", "token =", "pass_", "-token-", "token, ", "1-",
    "://", "://a:", "://a:b/", "a@", "@", "a.", "a-", "'", '"', "\\", "(", "{", "[", "<", "{'password': ",
    "Key (password, ", "bearer ", "basic a", "0x", "0", "0.", "00000000-", "a1", "f", 'File "', 'File "a", line 1, in ',
    "\n", " ", "\t", "a.B: ", "A.",
    "Error", "=>", "::", "\u202e", "\ud800", "\0", "é", "\U0001d552", "\u017f", "\u0130",
)  # fmt: skip
hook = Redaction(keys=(*DEFAULT_KEYS, "maiden_name", "(a+)+$", "x y-z"))
stones = st.lists(st.sampled_from(STONES) | hostile.texts, min_size=1, max_size=5).map("".join)


def look(text):
    for redaction in (DEFAULT, hook):
        assert len(redaction.text(text)) <= MAX_TEXT
    normalise_message(text)
    top_frame(text)
    without_retry(text)
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(text[:50], text, text[:50]))
    printable(bounded(text, 8_000)).encode()


@given(stones)
def test_any_text_is_checked(text):
    look(text)


@given(stones.filter(bool))
def test_the_time_is_linear_in_the_length_of_any_text(text):
    assert_linear(lambda size: look((text * (size // len(text) + 1))[:size]), 25_000)


@corpus("stone", STONES)
def test_repeating_one_part_takes_linear_time(stone):
    for before in ("", "password="):
        assert_linear(lambda size: look(before + (stone * size)[:size]), 30_000)  # noqa: B023 - called at once


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(lambda name: len(name.encode()) <= 255)


@given(names, names)
def test_the_pattern_of_a_policy_matches_its_queue_and_no_other(queue, other):
    policy = Policy("p", pattern_of(queue))
    assert policy.fits(queue, "classic")
    assume(other != queue)
    assert not policy.fits(other, "classic")
    assert not policy.fits(f"{queue}x", "classic")
    assert not policy.fits(f"x{queue}", "classic")


@given(hostile.texts, names, st.sampled_from(["classic", "quorum", "stream"]))
def test_a_policy_of_any_text_fits_or_does_not_or_only_the_broker_can_decide(pattern, queue, kind):
    assert Policy("p", pattern).fits(queue, kind) in (True, False, None)


@corpus("pattern", ["\ud800", "a{99999999999999999999}", "(" * 5_000 + ")" * 5_000, "[", "(?P<n>a)(?P<n>b)"])
def test_a_pattern_that_python_cannot_read_is_left_to_the_broker(pattern):
    assert Policy("p", pattern).fits("q", "classic") is None
