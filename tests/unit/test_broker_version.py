"""Version and capabilities of the broker, and the pauses between attempts to reach it."""

from itertools import repeat
from types import SimpleNamespace
from typing import Any

from celery_rmq_delay.amqp.capabilities import Capabilities, broker_version
from celery_rmq_delay.amqp.link import Backoff
from tests.support.corpus import corpus


@corpus(
    "reported, version",
    [
        ("3.10.8", (3, 10, 8)),
        (b"4.0.5", (4, 0, 5)),
        ("4.3.6-rc.1", (4, 3, 6)),
        ("4.1", (4, 1, 0)),
        ("4", (4, 0, 0)),
        ("", (0, 0, 0)),
        ("unknown", (0, 0, 0)),
        (None, (0, 0, 0)),
    ],
)
def test_the_version_is_read_from_the_server_properties(reported, version):
    properties = {} if reported is None else {"version": reported}
    connection: Any = SimpleNamespace(connection=SimpleNamespace(server_properties=properties))
    assert broker_version(connection) == version


@corpus(
    "version, reason, keeps, flags",
    [
        ((0, 0, 0), False, False, False),
        ((3, 10, 8), False, False, False),
        ((3, 12, 14), False, False, False),
        ((3, 13, 0), True, False, False),
        ((4, 0, 5), True, True, False),
        ((4, 1, 0), True, True, True),
        ((4, 3, 6), True, True, True),
    ],
)
def test_capabilities_follow_the_version(version, reason, keeps, flags):
    found = Capabilities(version)
    assert (found.reports_death_reason, found.keeps_delivery_count, found.flags_returned) == (reason, keeps, flags)


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success():
    backoff = Backoff(first=0.5, longest=3.0)
    assert [each.pause() for each in repeat(backoff, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.pause() == 0.5
