"""Calls at the end of a transaction of Django, as Celery's own tasks have them in a Django project."""

import pytest
from django.db import transaction

from celery_rmq_delay.amqp.apply import ready_counts
from tests.support.brokers.lab_app import shop

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.versions]


def test_calls_on_commit_are_published_by_the_commit_and_not_by_a_rollback(lab):
    app = shop(lab)
    task, queue = app.tasks["shop.charge"], lab.queue(app.conf.task_default_queue)
    with transaction.atomic():
        task.delay_on_commit()
        task.apply_async_on_commit(countdown=0, task_id="delayed")
        assert ready_counts(lab.connection, [queue]) == {queue: 0}
    assert [lab.get(queue, ack=True).headers["id"] == "delayed" for _ in range(2)] == [False, True]

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        task.delay_on_commit()
        raise ZeroDivisionError
    assert ready_counts(lab.connection, [queue]) == {queue: 0}
    app.close()
