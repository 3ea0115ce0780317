"""Every exact topology with every kind of exchange: never early, once, and in the right queue."""

import random
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import kombu
import pytest
from kombu import Exchange, Queue

from tests.support.corpus import slow
from tests.support.waiting import BUSY, wait_for
from tests.support.workers.lab import close_app
from tests.support.workers.project import make_app

pytestmark = pytest.mark.slow

TOPOLOGIES = (("levels", "classic"), ("levels", "quorum"), ("hold", "classic"), ("loop", "classic"), ("loop", "quorum"))
KINDS = ("default", "direct", "topic", "fanout")
#: Seconds, and how many more at random up to the longest of them.
GIVEN = {"seconds": ((0, 0.3, 1, 1.5, 4), 3), "a minute": ((0, 0.3, 1, 1.5, 7, 63, 64), 30)}
UNIT = 1.0


@dataclass
class Sent:
    queue: str
    delay: float
    before: float
    after: float


@dataclass
class Arrivals:
    """Received messages by task id: (queue, time) of each arrival."""

    seen: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    def note(self, queue):
        def on_message(message):
            self.seen.setdefault(message.headers["id"], []).append((queue, time.time()))

        return on_message


@contextmanager
def consuming(url, queues):
    """Record the messages that arrive in the queues, in a thread of its own."""
    arrivals, stopping = Arrivals(), threading.Event()

    def run():
        with kombu.Connection(url) as connection:
            channel = connection.channel()
            for queue in queues:
                channel.basic_consume(queue, callback=arrivals.note(queue), no_ack=True)
            while not stopping.is_set():
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.2)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield arrivals
    finally:
        stopping.set()
        thread.join()


def config_of(lab, topology, queue_type):
    settings = {"exact_delays": topology, "exact_queue_type": queue_type, "prefix": f"p-{topology}-{queue_type}"}
    return replace(lab.config, queue_type=queue_type, rmq_delay=settings, conf={"task_ignore_result": True})


def app_of(config):
    """Return an app with two queues for each kind of exchange, of which one's name and key end like the other's."""
    app, found = make_app(config), []
    for kind in KINDS:
        name = f"{config.rmq_delay['prefix']}.{kind}"
        exchange = Exchange("" if kind == "default" else f"x.{name}", "direct" if kind == "default" else kind)
        kept = {"x-queue-type": config.queue_type}
        found += [Queue(key, exchange, key, queue_arguments=kept) for key in (name, f"eu.{name}")]
    app.conf.task_queues = found
    return app


def send(app, queues, seed, given, more):
    """Send every delay to every queue, and ``more`` different random ones."""
    rng, sent = random.Random(seed), {}
    for queue in queues:
        for delay in (*given, *(rng.uniform(0, given[-1]) for _ in range(more))):
            before = time.time()
            result = app.tasks["add"].apply_async((1, 2), countdown=delay, queue=queue.name)
            sent[result.id] = Sent(queue.name, delay, before, time.time())
    return sent


@pytest.mark.brokers
@pytest.mark.parametrize("longest", ["seconds", slow("a minute")])
def test_delays_are_never_early_and_lead_once_to_the_right_queue(make_lab, longest):
    lab = make_lab("classic")
    configs = [config_of(lab, *each) for each in TOPOLOGIES]
    for config in configs:
        if config.rmq_delay["exact_delays"] == "loop":
            idle = f"idle-{config.queue_type}"
            lab.worker("threads", 1, "--queues", idle, config=config)  # releases messages from the loop
    apps = [app_of(config) for config in configs]
    names = [queue.name for app in apps for queue in app.amqp.queues.values()]
    sent: dict[str, Sent] = {}
    for app in apps:
        with app.connection_for_write() as connection:
            for queue in app.amqp.queues.values():
                queue(connection.default_channel).declare()
    with consuming(lab.config.broker, names) as arrivals:
        for seed, app in enumerate(apps):
            sent |= send(app, list(app.amqp.queues.values()), seed, *GIVEN[longest])
        wait_for(lambda: len(arrivals.seen) >= len(sent), "all arrivals")
        time.sleep(2 * UNIT)  # a second copy would come within a unit
    wrong = {}
    for task_id, each in sent.items():
        came = arrivals.seen.get(task_id, [])
        rounded_up = UNIT if each.delay else 0.0
        fine = (
            [queue for queue, _ in came] == [each.queue]
            and came[0][1] >= each.before + each.delay
            and came[0][1] < each.after + each.delay + rounded_up + BUSY
        )
        if not fine:
            wrong[task_id] = (each, [(queue, round(when - each.before - each.delay, 3)) for queue, when in came])
    assert wrong == {}, f"{len(wrong)} of {len(sent)}: {list(wrong.values())[:10]}"
    for app in apps:
        close_app(app)
