"""Headers from any source: nothing raises, and the resulting headers can be published."""

import json
from struct import pack
from types import SimpleNamespace
from typing import Any

import amqp
from amqp import serialization
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_rmq_delay import headers as h
from celery_rmq_delay.amqp.capabilities import Capabilities
from celery_rmq_delay.amqp.connections import TolerantMessage, frame_handler, tolerant
from celery_rmq_delay.amqp.copies import copy_of
from celery_rmq_delay.exceptions import UnreadableError
from celery_rmq_delay.ladders import Ladder
from celery_rmq_delay.names import tier_of
from celery_rmq_delay.operations.exhausted import describe
from celery_rmq_delay.retry.decision import Action, Place, arrive, crashes
from celery_rmq_delay.topology.native_retry import NativeRetry
from celery_rmq_delay.worker.intake import check, check_payload
from tests.support import hostile

COUNTS = range(h.MAX_COUNT + 1)
VERSIONS = st.sampled_from([(3, 10, 8), (4, 0, 5), (4, 3, 6)])


def sent(headers):
    """Return headers as the next process receives them; fails for values that AMQP cannot carry."""
    return hostile.on_the_wire(headers)


@given(hostile.headers)
def test_counts_are_counts_and_queues_are_names_or_unknown(headers):
    assert h.retries(headers, "q") in COUNTS
    assert 0 <= h.rejections(headers, "q", "q.quarantine") <= h.all_rejections(headers) <= h.MAX_COUNT
    assert h.origin_queue(headers) is None or h.origin_queue(headers)
    assert "x-death" not in h.without_dead_letters(headers)
    assert crashes(headers) in COUNTS


@given(hostile.headers, st.integers(0, h.MAX_COUNT))
def test_copies_and_replays_can_be_published_and_keep_headers_of_others(headers, retries):
    exchange, key = h.first_route(headers, "q", "orders", "created")
    assert isinstance(exchange, str)
    assert isinstance(key, str)
    more = {h.ATTEMPTS: retries + 1, h.CRASHES: crashes(headers) + 1, h.QUEUE: "q"}
    copied = sent(h.forwarded(headers, retries=retries, exchange=exchange, routing_key=key, more=more))
    replayed = sent(h.replayed(copied))
    for name, value in headers.items():
        if name not in hostile.KNOWN and name[:2] != "x-" and not str(name).startswith(h.PREFIX):
            assert repr(copied[name]) == repr(replayed[name]) == repr(value)
    assert not any(str(name).startswith("x-death") for name in replayed)
    assert sent(h.original(headers)).get("x-death") is None


@given(hostile.headers, st.binary(max_size=50))
def test_any_message_of_the_exhausted_queue_can_be_listed(headers, body):
    found = describe(amqp.Message(body, application_headers=headers, correlation_id="c"))
    json.dumps(found.to_json(), default=str).encode("utf-8", "surrogatepass")
    assert found.size == len(body)
    assert found.attempts >= 0


@given(hostile.headers, VERSIONS, st.booleans(), st.booleans())
def test_the_crash_guard_always_decides(headers, version, quorum, quarantined):
    place = Place("q", quarantined, counts=quorum, broker=Capabilities(version))
    known = headers.get("retries")
    found = arrive(headers, place, Ladder((1_000,)), known=known, routing_key="q", redelivered=True)
    assert found.action in (Action.RUN, Action.QUARANTINE, Action.EXHAUSTED)
    assert found.action is not Action.EXHAUSTED or quarantined
    assert found.retries in COUNTS


@given(hostile.headers)
def test_addresses_times_and_native_counts_are_read_or_left(headers):
    address = h.exact_address(headers)
    assert address is None or (isinstance(address[0], str) and address[1] >= 0)
    first = h.first_death(headers)
    assert first is None or (first.tzinfo is not None and h.timestamp(first))
    native = NativeRetry(Ladder((1_000, 2_000)))
    assert native.requeue_count(headers) >= 0
    assert native.was_interrupted(headers, 3) in (True, False)


@given(hostile.headers)
def test_accepted_messages_have_limits_that_the_pool_can_use(headers):
    try:
        check(headers)
    except UnreadableError:
        return
    limits = headers.get("timelimit")
    if limits:
        hard, soft = limits
        assert all(limit is None or 0 <= limit < float("inf") for limit in (hard, soft))


@given(hostile.json_values)
def test_a_decoded_body_is_a_call_or_refused(payload):
    try:
        check_payload(payload)
    except UnreadableError:
        return
    assert isinstance(payload, dict) or isinstance(payload[1], dict)


@given(hostile.properties, st.binary(max_size=20))
def test_every_delivery_becomes_a_message(properties, body):
    message = TolerantMessage()
    message.inbound_header(b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties)
    if body:
        message.inbound_body(body)
    assert message.ready
    headers = message.properties.get("application_headers") or {}
    if list(headers) == [h.PROPERTIES] and isinstance(headers[h.PROPERTIES], bytes):
        assert headers[h.PROPERTIES] == properties
    assert serialization.dumps("F", (headers,))


@given(hostile.texts, hostile.texts)
def test_a_tier_is_known_by_its_key_only(queue, key):
    tier_index = tier_of(queue, key)
    assert tier_index == 0 or (tier_index > 0 and key.startswith(f"{queue}@"))


def test_a_copy_leaves_routing_headers_and_the_user_out():
    sent = {"user_id": "guest", "expiration": "1"}
    received = SimpleNamespace(
        headers={}, properties=sent, content_type=None, content_encoding=None, errors=[], body=b"x"
    )
    found = copy_of(received, {"CC": ["elsewhere"], "BCC": ["elsewhere"], "tenant": "north"})  # type: ignore[arg-type]
    assert found.headers == {"tenant": "north"}
    assert not {"user_id", "expiration"} & found.properties.keys()


def test_a_delivery_that_a_signal_handler_reads_to_its_end_is_delivered_once(monkeypatch):
    delivered: list[Any] = []
    on_frame = frame_handler(SimpleNamespace(bytes_recv=0), lambda *found: delivered.append(found))
    read, body = TolerantMessage.inbound_body, (3, 1, b"x")

    def interrupted(message, payload):
        monkeypatch.setattr(TolerantMessage, "inbound_body", read)
        on_frame(body)
        read(message, payload)

    monkeypatch.setattr(TolerantMessage, "inbound_body", interrupted)
    on_frame((1, 1, pack(">HH", 60, 60) + b"\x01t" + pack(">Q", 1) + b"\0" + b"\x01e" + b"\x01r"))
    on_frame((2, 1, pack(">HHQH", 60, 0, 1, 0)))
    on_frame(body)
    assert len(delivered) == 1


def test_a_workers_statistics_have_its_transport_options_as_json():
    """`inspect stats` sends them; with a function among them it would get no reply."""
    decoded = json.loads(dumps(tolerant({"confirm_publish": True})))
    assert decoded == {"confirm_publish": True, "frame_handler": "celery_rmq_delay.amqp.connections.frame_handler"}
