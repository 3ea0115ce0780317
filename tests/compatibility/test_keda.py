"""KEDA's RabbitMQ scaler: the queue lengths that it reads, by AMQP and by the management API."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import kombu
import pytest

from celery_rmq_delay.testing import PrivateBroker
from tests.support.waiting import SECONDS, wait_for
from tests.support.workers.lab import Lab
from tests.support.workers.project import Config


@pytest.fixture
def keda_lab(managed_vhost: str, rmq_redis: Any, tmp_path: Path) -> Iterator[Lab]:
    attempts = f"attempts-{uuid.uuid4().hex}"
    lab = Lab(Config(managed_vhost, rmq_redis.url, attempts, rmq_delay={"tiers": ["5s"]}), tmp_path)
    yield lab
    lab.close()


def by_amqp(lab: Lab) -> int:
    """The length that the scaler reads with the protocol amqp: the ready messages."""
    with kombu.Connection(lab.config.broker) as connection:
        count: int = connection.channel().queue_declare("shop", passive=True).message_count
        return count


def by_http(lab: Lab, broker: PrivateBroker) -> int:
    """The length that it reads with the protocol http: ready messages and unacknowledged ones."""
    assert broker.management_url is not None
    answer = httpx.get(f"{broker.management_url}/api/queues/{quote(lab.vhost, '')}/shop", auth=("guest", "guest"))
    length: int = answer.raise_for_status().json().get("messages", -1)  # -1: the API has no statistics yet
    return length


def test_a_parked_task_is_not_in_the_length_of_its_queue_and_comes_back_without_a_worker(
    keda_lab: Lab, managed: PrivateBroker
) -> None:
    worker = keda_lab.worker()
    result = keda_lab.task("fails").delay(1)
    wait_for(lambda: keda_lab.parked() == 1 and result.state == "RETRY", "the parked task")
    wait_for(lambda: by_http(keda_lab, managed) == 0, "the statistics of the management API")
    assert by_amqp(keda_lab) == 0

    worker.kill("SIGTERM")  # scaled to zero
    wait_for(lambda: by_amqp(keda_lab) == 1, "the task in its queue when it is due")
    wait_for(lambda: by_http(keda_lab, managed) == 1, "the same in the management API")
    keda_lab.worker()  # scaled up

    assert result.get(timeout=SECONDS) == 1


def test_the_retry_of_a_stock_task_is_counted_by_http_only_while_a_worker_holds_it(
    keda_lab: Lab, managed: PrivateBroker
) -> None:
    keda_lab.worker()
    result = keda_lab.task("plain").delay(3_600)
    wait_for(lambda: result.state == "RETRY", "the retry")

    wait_for(lambda: by_http(keda_lab, managed) == 1, "the retry in the management API")
    assert by_amqp(keda_lab) == 0
