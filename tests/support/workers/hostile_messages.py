"""Messages of hostile or broken publishers. Each has to end in the exhausted queue."""

import itertools
import json
import pickle
from struct import pack
from typing import Any

import amqp

from celery_rmq_delay import headers as h
from tests.support.workers.other_producer import task_message

#: The number of failures of a task: more than its retries. Another number for each makes another body.
_NUMBERS = itertools.count(100)
_HEADERS, _CORRELATION_ID = 1 << 13, 1 << 10


class Raw(amqp.Message):
    """A message whose properties are these bytes."""

    raw = b""

    def _serialize_properties(self) -> bytes:
        return self.raw


def raw(properties: bytes) -> amqp.Message:
    found = Raw(f"[[{next(_NUMBERS)}], {{}}, {{}}]".encode())
    found.raw = properties
    return found


def table(*entries: tuple[bytes, bytes]) -> bytes:
    """Return properties that are headers only; their values begin with the letter of their type."""
    content = b"".join(pack("B", len(name)) + name + value for name, value in entries)
    return pack(">H", _HEADERS) + pack(">I", len(content)) + content


def text(value: bytes) -> bytes:
    return b"S" + pack(">I", len(value)) + value


def nested(depth: int) -> bytes:
    value = b""
    for _ in range(depth):
        value = b"A" + pack(">I", len(value)) + value
    return value


def body(content: bytes, content_type: str = "application/json", encoding: str = "utf-8") -> amqp.Message:
    headers = {"task": "fails", "id": f"body-{next(_NUMBERS)}"}
    return amqp.Message(
        content, content_type=content_type, content_encoding=encoding, delivery_mode=2, application_headers=headers
    )


def task(**headers: Any) -> amqp.Message:
    return task_message("fails", [next(_NUMBERS)], **headers)


def first(**content: Any) -> amqp.Message:
    content = {"args": [next(_NUMBERS)], "kwargs": {}, **content}
    return amqp.Message(json.dumps(content), content_type="application/json", content_encoding="utf-8")


MOST = 2**63 - 1
NAMED = (b"task", text(b"fails"))
#: Properties that py-amqp cannot decode, or decodes into unexpected values.
PROPERTIES: dict[str, amqp.Message] = {
    "a correlation id that is no UTF-8": raw(pack(">H", _CORRELATION_ID) + b"\x02\xff\xfe"),
    "a time beyond the year 9999": raw(table(NAMED, (b"when", b"T" + pack(">Q", 1_800_000_000_000)))),
    "tables nested too deep": raw(table(NAMED, (b"deep", nested(3_000)))),
    "a header's name that is no UTF-8": raw(table(NAMED, (b"\xff", text(b"a")), (b"id", text(b"a")))),
    "an id that is no UTF-8": raw(table(NAMED, (b"id", text(b"\xff\xfe")))),
    "an id of half a character": raw(table(NAMED, (b"id", text(b"\xed\xa0\x80")))),
    "a task that is no UTF-8": raw(table((b"task", text(b"\xff")), (b"id", text(b"b")))),
}
HEADERS: dict[str, amqp.Message] = {
    "a task that is a table": task(task={}),
    "a task that is a list": task(task=["fails"]),
    "an id that is a table": task(id={"a": 1}),
    "an id that is nothing": task(id=None),
    "no id": amqp.Message(b"[[98], {}, {}]", content_type="application/json", application_headers={"task": "fails"}),
    "an id for a terminal": task(id="'; DROP TABLE\n\x1b[31m\0"),
    "as many retries as there are": task_message("limited", [], retries=MOST),
    "as many generations and crashes as there are": task(**{h.GENERATION: MOST, h.CRASHES: MOST}),
    "time limits that are text": task(timelimit="12"),
    "time limits that are of the wrong types": task(timelimit=[{}, "a"]),
    "stamped headers that are true": task(stamped_headers=True),
    "stamped headers that are numbers": task(stamped_headers=[1, {"a": 1}]),
    "stamps that are a list": task(stamped_headers=["a"], stamps=["b"]),
    "an expiry that is a table": task(expires={"a": 1}),
    "an eta that is none": task(eta="never"),
    "an eta that is a table": task(eta={"a": 1}),
    "a lane that is a table": task(**{h.LANE: {"a": [1]}}),
    "a first route too long for AMQP": task(**{h.EXCHANGE: "x" * 5_000, h.ROUTING_KEY: "k" * 5_000}),
    "a first failure that is a table": task(**{h.FIRST_FAILED: {"a": 1}}),
    "a first failure before all time zones": task(**{h.FIRST_FAILED: "0001-01-01T00:00:00+14:00"}),
    "deaths that are text": task(**{"x-death": "none"}),
    "forged deaths": task_message(
        "limited", [], tenant="b", **{"x-death": [{"count": MOST, "reason": "rejected", "queue": "shop"}]}
    ),
    "a family of wrong types": task(group={"a": 1}, root_id=[1], parent_id=3.5),
    "previews of wrong types": task(argsrepr={"a": 1}, kwargsrepr=5),
    "options of wrong types": task(origin=5, shadow={"x": 1}, stamps=5, stamped_headers={"a": 1}, ignore_result="x"),
    "an unknown compression": task(compression="zip"),
    "a compression that is a table": task(compression={"a": 1}),
    "many large headers": task(**{f"h{number}": "x" * 1_000 for number in range(100)}),
    "NUL": task(root_id="a\0b", argsrepr="\0"),
}
BODIES: dict[str, amqp.Message] = {
    **{
        repr(found[:20]): body(found)
        for found in (b"", b"5", b"null", b'"args"', b'{"args": 5}', b"[[1]]", b"[[9], {}, 5]")
    },
    "brackets": body(b"[" * 100_000),
    "no UTF-8": body(b"\xff\xfe[[99], {}, {}]"),
    "keywords that are a list": body(b"[[99], [], {}]"),
    "keywords of the machinery": body(b'[[99], {"self": 1, " ": 3}, {}]'),
    "callbacks of wrong types": body(b'[[99], {}, {"callbacks": 5, "errbacks": {"a": 1}, "chain": 7, "chord": "x"}]'),
    "an unknown content type": body(b"[[99], {}, {}]", "application/x-nothing"),
    "an unknown encoding": body(b"[[97], {}, {}]", encoding="klingon"),
    "a pickle": body(pickle.dumps(([99], {}, {})), "application/x-python-serialize", "binary"),
    "protocol 1: arguments of wrong types": first(task="fails", id=5, args=5, kwargs=[]),
    "protocol 1: a task that is a table": first(task={"a": 1}, id=5),
    "protocol 1: an expiry that is a list": first(task="fails", id="p1", retries="x", expires=[1]),
    "protocol 1: an eta that is a number": first(task="fails", id="p2", eta=5),
    "protocol 1: time limits that are text": first(task="fails", id="p3", timelimit="12"),
    "an unknown task": task_message("no.such.task", [99]),
    "an unknown task without id": amqp.Message(b"[[], {}, {}]", application_headers={"task": "no.such.task"}),
}
ALL = {**PROPERTIES, **HEADERS, **BODIES}
