"""Queues of an app that become origin queues, and their arguments."""

import copy
import pickle

from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_rmq_delay.app.queues import OriginQueue
from celery_rmq_delay.app.state import state_of
from tests.support.apps import app_of
from tests.support.corpus import corpus

QUORUM = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "rmq_delay.q.dlx",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def installed(*queues, settings=None, **conf):
    app = app_of(settings, broker="memory://", **({"task_queues": list(queues)} if queues else {}), **conf)
    return app, state_of(app)


def test_the_default_queue_is_an_origin_queue():
    app, delay = installed()
    queue = app.amqp.queues["celery"]
    assert isinstance(queue, OriginQueue)
    assert queue.queue_arguments == {"x-dead-letter-exchange": "rmq_delay.celery.dlx"}
    assert queue.exchange.name == "celery"
    assert delay.origin_queues() == ["celery"]


def test_a_missing_queue_becomes_an_origin_queue_when_it_is_used():
    app, _ = installed()
    options = app.amqp.router.route({"queue": "new"}, "t")
    assert isinstance(options["queue"], OriginQueue)
    assert options["queue"].queue_arguments["x-dead-letter-exchange"] == "rmq_delay.new.dlx"
    app.amqp.queues.select_add("more")
    assert isinstance(app.amqp.queues["more"], OriginQueue)


@corpus(
    "queue, settings, conf",
    [
        (Queue("q", queue_arguments={"x-queue-type": "quorum"}), {}, {}),
        (Queue("q"), {"queue_type": "quorum"}, {}),
        (Queue("q"), {"queues": {"q": {"queue_type": "quorum"}}}, {}),
    ],
)
def test_a_quorum_queue_dead_letters_at_least_once(queue, settings, conf):
    app, delay = installed(queue, settings=settings, **conf)
    assert app.amqp.queues["q"].queue_arguments == QUORUM
    assert delay.plan("q", reason_routing=True).queue_type == "quorum"


def test_celerys_setting_of_the_queue_type_is_followed():
    app, delay = installed(task_default_queue="q", task_default_queue_type="quorum")
    assert app.amqp.queues["q"].queue_arguments == QUORUM
    assert delay.plan("q", reason_routing=True).queue_type == "quorum"


def test_the_users_own_arguments_and_routing_stay():
    queue = Queue(
        "q",
        Exchange("orders", "topic"),
        "orders.#",
        max_priority=5,
        queue_arguments={"x-max-length": 10, "x-overflow": "drop-head"},
    )
    app, _ = installed(queue)
    origin = app.amqp.queues["q"]
    assert (origin.exchange.name, origin.exchange.type, origin.routing_key) == ("orders", "topic", "orders.#")
    assert origin.max_priority == 5
    assert origin.queue_arguments == {
        "x-max-length": 10,
        "x-overflow": "drop-head",
        "x-dead-letter-exchange": "rmq_delay.q.dlx",
    }


@corpus(
    "queue",
    [
        Broadcast("q"),
        Queue("q", durable=False),
        Queue("q", auto_delete=True),
        Queue("q", exclusive=True),
        Queue("q", queue_arguments={"x-queue-type": "stream"}),
    ],
)
def test_a_queue_that_cannot_have_a_ladder_is_not_changed(queue):
    before = copy.copy(queue.queue_arguments)
    app, delay = installed(queue)
    assert not isinstance(app.amqp.queues[queue.name], OriginQueue)
    assert app.amqp.queues[queue.name].queue_arguments == before
    assert queue.name not in delay.origin_queues()


@corpus("argument", ["x-dead-letter-exchange", "x-dead-letter-routing-key"])
def test_a_queue_that_dead_letters_elsewhere_is_not_changed_and_forwards_its_retries(argument):
    app, delay = installed(Queue("q", queue_arguments={argument: "theirs"}))
    assert type(app.amqp.queues["q"]) is Queue
    assert app.amqp.queues["q"].queue_arguments == {argument: "theirs"}
    assert delay.origin_queues() == ["q"]
    assert delay.differing == {"q"}


def test_a_queue_that_is_left_alone_is_not_changed():
    app, delay = installed(Queue("q"), settings={"queues": {"q": False}})
    assert type(app.amqp.queues["q"]) is Queue
    assert delay.origin_queues() == []


def test_an_origin_queue_is_bound_to_a_channel_as_any_other():
    app, delay = installed(Queue("q"))
    queue = app.amqp.queues["q"]
    assert copy.copy(queue).delay is delay
    with app.connection_for_write() as connection:
        bound = queue(connection.default_channel)
        assert isinstance(bound, OriginQueue)
        assert bound.delay is delay


def test_an_app_on_another_transport_can_still_publish():
    app, _ = installed()
    app.send_task("any")


def test_the_app_can_still_be_pickled():
    app, _ = installed()
    assert pickle.loads(pickle.dumps(app)).main == app.main


def test_how_often_a_message_may_be_rejected_depends_on_the_delivery_limit():
    _, delay = installed(
        Queue("classic"),
        Queue("quorum", queue_arguments={"x-queue-type": "quorum"}),
        Queue("strict", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 4}),
        Queue("strictest", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 1}),
        Queue("endless", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}),
    )
    assert delay.rejections_allowed("classic") > 10**6
    assert delay.rejections_allowed("quorum") < 20
    assert delay.rejections_allowed("strict") < 4
    assert delay.rejections_allowed("strictest") == 1
    assert delay.rejections_allowed("endless") > 10**6
