"""Errors of RabbitMQ that the troubleshooting page quotes."""

import kombu
import pytest
from amqp.exceptions import PreconditionFailed
from celery import Celery

from celery_rmq_delay import install
from tests.support import ROOT

pytestmark = pytest.mark.brokers

PAGE = (ROOT / "docs/operate/troubleshoot.md").read_text()


def test_a_declaration_without_our_arguments_is_refused_as_documented(rmq_vhost):
    app = Celery("shop", broker=rmq_vhost, set_as_current=False)
    app.conf.task_default_queue = "payments"
    install(app)
    with app.connection_for_write() as connection:
        app.amqp.queues["payments"](connection.channel()).declare()
    with kombu.Connection(rmq_vhost) as connection, pytest.raises(PreconditionFailed) as refused:
        kombu.Queue("payments")(connection.channel()).declare()
    text = refused.value.reply_text.replace(f"in vhost '{connection.virtual_host}'", "in vhost '/'")
    assert f'```text title="RabbitMQ"\n{text}\n' in PAGE
