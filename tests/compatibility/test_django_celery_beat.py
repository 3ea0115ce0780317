"""django-celery-beat: a periodic task that is retried."""

from contextlib import ExitStack

import pytest

from tests.support.compatibility.django_shop import DJANGO, database, result_rows, rows
from tests.support.compatibility.plays import KINDS, SHOP, Play, environ_of, start, start_worker
from tests.support.waiting import BUSY, wait_for

pytest.importorskip("django_celery_beat")

EVERY_SECOND = "INSERT INTO django_celery_beat_intervalschedule (id, every, period) VALUES (1, 1, 'seconds')"
ONCE = (
    "INSERT INTO django_celery_beat_periodictask (name, task, interval_id, one_off, enabled, args, kwargs, headers, "
    "description, total_run_count, date_changed) "
    "VALUES ('nightly', 'recovers', 1, 1, 1, '[]', '{}', '{}', '', 0, '2026-01-01 00:00:00')"
)


@pytest.fixture(params=KINDS)
def scheduled(request, vhosts, rmq_redis, tmp_path):
    """A worker and a beat with a periodic task that is due once."""
    environ = environ_of(DJANGO, request.param, tmp_path, vhosts[KINDS.index(request.param)], rmq_redis.url)
    play = Play(request.param, tmp_path)
    with ExitStack() as stack:
        stack.callback(start_worker(environ, tmp_path).close)
        wait_for(lambda: "ready." in play.log, "the worker")
        with database(play) as connection:
            connection.execute(EVERY_SECOND)
            connection.execute(ONCE)
        scheduler = "--scheduler=django_celery_beat.schedulers:DatabaseScheduler"
        beat = ("celery", "-A", SHOP, "beat", scheduler, "--max-interval=1", "--pidfile=")
        stack.callback(start(environ, tmp_path, "beat", *beat).close)
        yield play


def test_a_periodic_task_that_fails_comes_back_and_its_row_names_its_schedule(scheduled):
    (row,) = wait_for(
        lambda: [row for row in result_rows(scheduled) if row["status"] == "SUCCESS"], "the periodic task", BUSY
    )

    assert (row["task_name"], row["periodic_task_name"], row["states"]) == ("recovers", "nightly", ["RETRY", "SUCCESS"])
    (entry,) = rows(scheduled, "SELECT * FROM django_celery_beat_periodictask WHERE name = 'nightly'")
    assert entry["last_run_at"] is not None
