"""celery-singleton: locks of tasks that are parked."""

import threading
import uuid
from collections import Counter
from typing import Any

import pytest
from celery import Celery

import celery_rmq_delay
from celery_rmq_delay import before_requeue, requeue_failed
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.operations.exhausted import Selection, list_exhausted, requeue
from tests.support.compatibility.plays import PAGE
from tests.support.snippets import snippets
from tests.support.waiting import BUSY, wait_for

pytest.importorskip("celery_singleton")


class Shop:
    """An app with singletons, and how often each of its tasks has run."""

    def __init__(self, redis):
        from celery_singleton import Singleton

        shown: dict[str, Any] = {}
        exec(next(each.code for each in snippets(PAGE) if each.title == "with_celery_singleton.py"), shown)
        app = Celery(set_as_current=False)
        app.conf.update(
            rmq_delay={"tiers": ["100ms"] * 200},
            singleton_backend_url=redis,
            singleton_key_prefix=uuid.uuid4().hex,
            task_default_queue="shop",
        )
        celery_rmq_delay.install(app)
        shown["lock_requeues"](app)
        self.app, self.runs, self.may_succeed = app, Counter[str](), threading.Event()

        @app.task(bind=True, shared=False, base=shown["RetryableSingleton"], give_up_on=(KeyError,))
        def syncs(task, customer):
            self.runs[task.request.id] += 1
            if customer < 0:
                raise KeyError(customer)
            if not self.may_succeed.is_set():
                raise ConnectionError("not yet")

        @app.task(bind=True, shared=False, base=shown["RetryableSingleton"])
        def changes(task):
            self.runs[task.request.id] += 1
            if task.request.retries == 0:
                raise task.retry(priority=3)

        @app.task(bind=True, shared=False, base=Singleton, autoretry_for=(Exception,), default_retry_delay=0.1)
        def stock(task):
            self.runs[task.request.id] += 1
            raise ConnectionError("not yet")

        @app.task(bind=True, shared=False)
        def later(task):
            self.runs[task.request.id] += 1

        self.syncs, self.changes, self.stock, self.later = syncs, changes, stock, later

    def ran(self, result, times=1):
        return self.runs[result.id] >= times


@pytest.fixture
def shop(rmq_redis, rmq_worker):
    shop = Shop(rmq_redis.url)
    rmq_worker(shop.app)
    yield shop
    # Those of this shop would take locks for the tasks of the next, which have the same names.
    for signal in (before_requeue, requeue_failed):
        signal.receivers.clear()


def test_a_task_holds_its_lock_while_it_is_parked_and_releases_it_at_its_end(shop):
    first = shop.syncs.delay(7)
    wait_for(lambda: shop.ran(first, 3), "a task that was parked twice", BUSY)

    assert shop.syncs.delay(7).id == first.id
    assert shop.syncs.delay(8).id != first.id

    shop.may_succeed.set()
    wait_for(lambda: shop.syncs.delay(7).id != first.id, "the release of the lock", BUSY)


def test_a_task_that_is_exhausted_releases_its_lock(shop):
    first = shop.syncs.delay(-1)
    wait_for(lambda: shop.syncs.delay(-1).id != first.id, "the release of the lock", BUSY)
    assert shop.runs[first.id] == 1


def test_a_requeue_takes_the_lock_or_leaves_the_task_exhausted_while_another_one_has_it(shop):
    settings, every = state_of(shop.app).settings, Selection(everything=True)
    exhausted = shop.syncs.delay(-1)
    with shop.app.connection_for_write() as connection:
        wait_for(lambda: list_exhausted(connection, settings, every, limit=1).done, "the exhausted task", BUSY)
        lock = shop.syncs.generate_lock(shop.syncs.name, [-1], {})
        assert shop.syncs.aquire_lock(lock, "another")
        (failed,) = requeue(connection, settings, every).failed
        assert failed.problem == "another task with the same arguments has its lock"

        shop.syncs.unlock(lock)
        (failed,) = requeue(connection, settings, every, to="gone").failed
        assert "'gone'" in failed.problem
        assert shop.syncs.get_existing_task_id(lock) is None, "the requeue has failed"
        assert requeue(connection, settings, every).done
    wait_for(lambda: shop.ran(exhausted, 2), "the second run", BUSY)


def test_a_retry_that_the_lock_keeps_from_being_published_is_parked(shop):
    """It has the same arguments, so for celery-singleton it is a duplicate of the task that runs."""
    result = shop.changes.delay()
    wait_for(lambda: shop.ran(result, 2), "the second attempt", BUSY)


def test_a_retry_of_a_stock_singleton_is_lost(shop):
    """The difference: its retry is a duplicate, too, and is never published."""
    lost = shop.stock.delay()
    wait_for(lambda: shop.ran(lost), "the first attempt", BUSY)
    later = shop.later.apply_async(countdown=1)
    wait_for(lambda: shop.ran(later), "a task that is due after the retry", BUSY)
    assert shop.runs[lost.id] == 1
