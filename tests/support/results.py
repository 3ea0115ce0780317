"""Results of Celery before 5.7 in Redis, whose deletion can stop the process that reads them.

There ``AsyncResult.__del__`` unsubscribes from its channel, even if that has been done before. If the garbage
collector calls it while another command holds redis-py's lock, which is not reentrant before redis-py 6.4, the process
deadlocks (https://github.com/celery/celery/issues/10477). Celery has fixed it by unsubscribing once.
"""

from typing import Any

from celery.backends.redis import ResultConsumer


def pytest_configure() -> None:
    """Let this process unsubscribe once."""
    if hasattr(ResultConsumer, "_flush_pending_unsubscribe"):  # since Celery 5.7
        return
    cancel = ResultConsumer.cancel_for

    def cancel_for(consumer: Any, task_id: str) -> None:
        if consumer._get_key_for_task(task_id) in consumer.subscribed_to:
            cancel(consumer, task_id)

    ResultConsumer.cancel_for = cancel_for
