"""Pauses between attempts."""

from __future__ import annotations

from itertools import repeat

from celery_rmq_delay.amqp.backoff import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    assert [each.pause() for each in repeat(backoff, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.pause() == 0.5
