"""Events are written without waiting, whatever the broker does."""

import logging
import select

import pytest
from celery import Celery

import celery_rmq_delay
from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.app.state import state_of
from celery_rmq_delay.events import writer as event_writer
from celery_rmq_delay.events.queue import connect_events, events_queue
from celery_rmq_delay.events.writer import EventWriter
from tests.support.brokers.alarms import alarm
from tests.support.brokers.lab import contents
from tests.support.waiting import BUSY, wait_for

pytestmark = pytest.mark.brokers

KB = b"x" * 1000


class Pipe:
    """A writer to a queue of its own, and what arrives there."""

    def __init__(self, lab, **settings):
        self.lab = lab
        app = Celery("events", broker=lab.url, set_as_current=False)
        app.conf.task_default_queue_type = lab.queue_type
        app.conf.rmq_delay = {"prefix": lab.names.prefix, "events_max_length": 1000, **settings}
        self.delay = celery_rmq_delay.install(app)
        self.queue = lab.names.events
        lab.forget(self.queue)
        self.connections = 0
        self.writer = EventWriter(self._connect, self.queue)

    def _connect(self):
        self.connections += 1
        self.link = connect_events(self.lab.connection, self.delay)
        return self.link

    @property
    def count(self):
        return ready_counts(self.lab.connection, [self.queue])[self.queue] or 0

    def wait_for_count(self, count):
        def arrived():
            self.writer.tick()
            return self.count == count

        wait_for(arrived, f"{count} events in the queue", pause=0.05)

    def reconnected(self, times):
        def done():
            self.writer.tick()
            return self.connections >= times and self.writer.is_connected

        wait_for(done, "a new connection", pause=0.05)


@pytest.fixture
def make_pipe(lab):
    pipes: list[Pipe] = []

    def make(**settings):
        pipes.append(Pipe(lab, **settings))
        pipes[-1].writer.start()
        return pipes[-1]

    yield make
    for pipe in pipes:
        pipe.writer.close(0.1)


def test_events_arrive_whole_and_in_order_however_large(make_pipe):
    pipe = make_pipe()
    bodies = [b"{}", KB * 16, b"", *(str(number).encode() for number in range(500)), KB * 200]
    pipe.writer.write(*bodies)
    pipe.wait_for_count(len(bodies))
    found = [pipe.lab.channel.basic_get(pipe.queue, no_ack=True) for _ in bodies]
    assert [contents(message) for message in found] == bodies
    kinds = {
        (m.properties["content_type"], m.properties["content_encoding"], m.properties["delivery_mode"]) for m in found
    }
    assert kinds == {("application/json", "utf-8", 2)}


def test_a_close_waits_until_the_broker_has_everything(make_pipe):
    pipe = make_pipe()
    pipe.writer.write(*[KB] * 900)
    pipe.writer.close(BUSY)
    assert pipe.count == 900


@pytest.mark.slow
def test_a_close_logs_the_number_of_unconfirmed_events(make_pipe, own_broker, caplog):
    pipe = make_pipe()
    with alarm(own_broker), caplog.at_level(logging.WARNING):
        pipe.writer.write(b"1", b"2", b"3")
        pipe.writer.close(0.3)
    assert "3 events may be lost: the broker did not confirm them in time" in caplog.text


def test_confirms_are_read_while_nothing_is_closed(make_pipe):
    pipe = make_pipe()
    pipe.writer.write(*[KB] * 300)

    def confirmed():
        pipe.writer.tick()
        return pipe.writer.unconfirmed == 0

    assert pipe.writer.unconfirmed > 0
    wait_for(confirmed, "the confirms", pause=0.05)


def test_a_full_queue_drops_its_oldest_events(make_pipe):
    pipe = make_pipe()
    pipe.writer.write(*(str(number).encode() for number in range(1200)))
    pipe.writer.close(BUSY)
    wait_for(lambda: pipe.count == 1000)
    assert pipe.lab.get(pipe.queue, ack=True).body == "200"


def test_a_queue_with_other_arguments_is_used_with_a_warning(make_pipe, caplog):
    first = make_pipe()
    with caplog.at_level(logging.WARNING):
        second = make_pipe(events_max_length=2000)
    assert "exists with other arguments" in caplog.text
    first.writer.write(b"1")
    second.writer.write(b"2")
    second.wait_for_count(2)


def test_a_deleted_queue_is_declared_again(make_pipe):
    pipe = make_pipe()
    pipe.writer.write(b"1")
    pipe.wait_for_count(1)
    pipe.lab.channel.queue_delete(pipe.queue)
    pipe.writer.write(b"lost")
    pipe.reconnected(2)
    pipe.writer.write(b"2")
    pipe.wait_for_count(1)
    assert pipe.lab.get(pipe.queue, ack=True).body == "2"


@pytest.mark.slow
def test_events_without_a_connection_are_written_after_the_reconnect(make_pipe):
    pipe = make_pipe()
    pipe.link.sock.shutdown(2)
    pipe.writer.write(b"1", b"2")
    pipe.writer.write(b"3")
    pipe.reconnected(2)
    pipe.wait_for_count(3)


def test_a_start_connects_again_where_the_broker_has_closed_the_connection(make_pipe, own_broker):
    pipe = make_pipe()
    socket = pipe.link.sock
    own_broker.evaluate(
        '[rabbit_networking:close_connection(Pid, "to see what happens") '
        "|| [{pid, Pid}, {peer_port, Port}] <- rabbit_networking:connection_info_all([pid, peer_port]), "
        f"Port =:= {socket.getsockname()[1]}]"
    )
    wait_for(lambda: select.select([socket], [], [], 0)[0], "the broker's close")
    assert pipe.writer.is_connected, "nothing has read from it yet"
    pipe.writer.start()
    pipe.writer.write(b"1")
    pipe.writer.close(BUSY)
    wait_for(lambda: pipe.count == 1)


def test_without_apply_on_start_a_missing_queue_is_waited_for(make_pipe):
    pipe = make_pipe(apply_on_start=False)
    pipe.writer.write(b"1")
    assert not pipe.writer.is_connected
    queue = events_queue(state_of(pipe.delay.app))
    pipe.lab.queue(queue.name, **queue.arguments)
    pipe.reconnected(2)
    pipe.wait_for_count(1)


def test_an_alarm_neither_blocks_the_writer_nor_grows_its_buffer(make_pipe, own_broker, monkeypatch, caplog):
    monkeypatch.setattr(event_writer, "MAX_WAITING", 500)
    pipe = make_pipe()
    with alarm(own_broker):
        for _ in range(200):  # while the broker reads nothing: a blocking write would never return
            pipe.writer.write(*[KB] * 100)
        assert 500 <= pipe.writer.waiting < 600
        with caplog.at_level(logging.WARNING):
            pipe.writer.tick()
        assert "events were dropped" in caplog.text

    def all_gone():
        pipe.writer.tick()
        return pipe.writer.waiting == 0

    wait_for(all_gone, "the end of the alarm", pause=0.05)
    pipe.writer.write(b"last")
    pipe.writer.close(BUSY)
    wait_for(lambda: pipe.count == 1000)
    assert pipe.connections == 1
