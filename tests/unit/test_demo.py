"""``python -m celery_rmq_delay demo`` without a broker: its errors and its text."""

import io
import re
from datetime import datetime, timedelta, timezone

from click.testing import CliRunner

from celery_rmq_delay.demo import command
from celery_rmq_delay.demo.orders import ORDERS, TIERS
from celery_rmq_delay.demo.screen import Screen, Seen, picture, summary
from celery_rmq_delay.operations.status import TierStatus
from celery_rmq_delay.testing.servers import installation
from celery_rmq_delay.testing.servers.host import free_port
from tests.support.corpus import corpus

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def demo(*arguments):
    return CliRunner().invoke(command.main, ["demo", *arguments])


def test_without_a_broker_the_error_names_both_ways_to_have_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installation, "_CANDIDATES", ())
    result = demo()
    assert result.exit_code == 1
    assert result.output == (
        "Error: No rabbitmq-server was found. Install it (Debian: apt-get install rabbitmq-server; macOS: brew install "
        "rabbitmq), or name a running RabbitMQ with --broker-url amqp://USER:PASSWORD@HOST//.\n"
    )


@corpus(
    "url, reason",
    [
        ("amqp://guest:secret@127.0.0.1:{port}//", r"amqp://127.0.0.1:\d+// cannot be used: .*Connection refused"),
        ("redis://:secret@127.0.0.1/0", "The broker's transport is 'redis'.*Use an amqp:// broker_url"),
        ("http://127.0.0.1", "No such transport: http"),
        ("amqp://127.0.0.1:port//", "Port could not be cast to integer value as 'port'"),
    ],
)
def test_a_broker_that_cannot_be_used_is_an_error_in_one_line(url, reason):
    result = demo("--broker-url", url.format(port=free_port()))
    assert result.exit_code == 1
    assert re.fullmatch(rf"Error: .*{reason}\. Check the URL .*starts a private RabbitMQ\.\n", result.output)
    assert "secret" not in result.output


def test_redis_is_refused_by_its_transport_where_its_library_is_missing(monkeypatch):
    monkeypatch.setattr("kombu.transport.redis.redis", None)
    result = demo("--broker-url", "redis://:secret@127.0.0.1/0")
    assert result.exit_code == 1
    assert re.match("Error: redis://.* cannot be used: The broker's transport is 'redis'", result.output)
    assert len(result.output.splitlines()) == 1


def test_an_empty_url_is_a_wrong_option():
    result = demo("--broker-url", "")
    assert result.exit_code == 2
    assert "found an empty text; write a URL such as amqp://" in result.output


def seen(parked, held=0, due=None):
    tiers = [TierStatus(1, 2000, parked, due, 2000, retired=False), TierStatus(2, 5000, 0, None, None, retired=False)]
    return Seen(held, held, 3, tuple(tiers), at_once=5, recovered=2, exhausted=1)


def test_the_table_shows_how_many_wait_where_and_when_the_next_is_due():
    lines = picture(seen(4, 1, NOW + timedelta(seconds=1.2)), NOW).splitlines()
    assert [line.rstrip() for line in lines] == [
        "                        TASKS",
        "held by the worker          1  1 running",
        "waiting for the worker      3",
        "parked, tier 1 (2s)         4  next due in 1 s",
        "parked, tier 2 (5s)         0",
        "succeeded at once           5",
        "recovered                   2",
        "exhausted                   1",
    ]
    assert "next due within 2s" in picture(seen(4), NOW)


def test_a_terminal_has_one_table_that_is_drawn_again():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Screen(out := Terminal())
    screen.show(seen(4), 1.0)
    lines = out.getvalue().count("\n")
    screen.show(seen(3), 2.0)
    assert out.getvalue().count(f"\x1b[{lines}A") == 1


def test_a_file_has_a_line_for_each_change():
    screen = Screen(out := io.StringIO())
    for number, state in enumerate([seen(4), seen(4), seen(3, None)]):
        screen.show(state, float(number))
    assert out.getvalue().splitlines() == [
        " 0.0 s  worker holds 0, queued 3, parked 4 + 0, succeeded 5, recovered 2, exhausted 1",
        " 2.0 s  worker holds ?, queued 3, parked 3 + 0, succeeded 5, recovered 2, exhausted 1",
    ]


def test_the_summary_has_what_was_seen():
    assert list(summary(seen(0), seen(14), 19.2))[1:] == [
        f"All {len(ORDERS)} tasks have ended after 19 s: 5 succeeded at once, 2 recovered after 1 to {len(TIERS)} "
        "retries, 1 are exhausted.",
        "Meanwhile the worker held 0 tasks while 14 waited in RabbitMQ.",
    ]
