"""KEDA's RabbitMQ scaler: the queue lengths that it reads, by AMQP and by the management API."""

from urllib.parse import quote

import httpx
import pytest

from tests.support.waiting import SECONDS, wait_for


@pytest.fixture
def keda_lab(make_lab):
    return make_lab(rmq_delay={"tiers": ["5s"]})


def by_amqp(lab):
    return lab.count("shop")


def by_http(lab, broker):
    """The length that it reads with the protocol http: ready messages and unacknowledged ones."""
    answer = httpx.get(f"{broker.management_url}/api/queues/{quote(lab.vhost, '')}/shop", auth=("guest", "guest"))
    return int(answer.raise_for_status().json().get("messages", -1))  # -1: the API has no statistics yet


def test_a_parked_task_is_not_in_the_length_of_its_queue_and_comes_back_without_a_worker(keda_lab, managed):
    worker = keda_lab.worker()
    result = keda_lab.task("fails").delay(1)
    wait_for(lambda: keda_lab.parked() == 1 and result.state == "RETRY", "the parked task")
    wait_for(lambda: by_http(keda_lab, managed) == 0, "the statistics of the management API")
    assert by_amqp(keda_lab) == 0

    worker.stop()  # scaled to zero
    wait_for(lambda: by_amqp(keda_lab) == 1, "the task in its queue when it is due")
    wait_for(lambda: by_http(keda_lab, managed) == 1, "the same in the management API")
    keda_lab.worker()  # scaled up

    assert result.get(timeout=SECONDS) == 1


def test_the_retry_of_a_stock_task_is_counted_by_http_only_while_a_worker_holds_it(keda_lab, managed):
    keda_lab.worker()
    result = keda_lab.task("plain").delay(3_600)
    wait_for(lambda: result.state == "RETRY", "the retry")

    wait_for(lambda: by_http(keda_lab, managed) == 1, "the retry in the management API")
    assert by_amqp(keda_lab) == 0
