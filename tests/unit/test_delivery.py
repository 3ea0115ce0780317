"""Whether a reject alone takes a message to its next tier."""

from __future__ import annotations

import pickle

from celery.exceptions import Retry
from hypothesis import given
from hypothesis import strategies as st

from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.retry.delivery import Delivery, Parked, RetryPath, advances_by_itself
from tests.support.corpus import corpus


@given(st.integers(1, 6), st.integers(0, 10), st.integers(0, 10), st.booleans())
def test_a_message_advances_by_itself_where_its_tier_is_its_number_of_retries(
    length: int, tier_index: int, retries: int, repeat_last: bool
) -> None:
    ladder = Ladder((1000,) * length, repeat_last=repeat_last)
    advances = advances_by_itself(Delivery("q", tier_index, None, RetryPath.REJECT), ladder, retries)
    if advances:
        # The broker's routing by the key and the worker's count give the same tier.
        by_the_broker = min(tier_index + 1, length)
        assert by_the_broker == ladder.tier_after(retries)
        assert retries < length or repeat_last
    elif retries < length:
        assert tier_index != retries
    else:
        assert not repeat_last or tier_index != length


@corpus("path", list(RetryPath))
def test_a_parked_retry_is_a_retry_with_its_path_and_tier(path: RetryPath) -> None:
    retry = Retry("m", KeyError("k"), 10.5)
    parked = Parked.of(retry, path, 2)
    for each in (parked, pickle.loads(pickle.dumps(parked))):
        assert isinstance(each, Retry)
        assert (each.path, each.tier_index, each.when, each.message) == (path, 2, 10.5, "m")
        assert str(each) == str(retry)
        assert each.humanize() == retry.humanize()
        assert each.is_eager is False
        assert each.sig is None


def test_a_delivery_travels_to_the_pool() -> None:
    delivery = Delivery("q", 1, 3, RetryPath.COPY)
    assert pickle.loads(pickle.dumps(delivery)) == delivery
