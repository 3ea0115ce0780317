"""Sentry: errors and transactions of the Celery integration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.compatibility.plays import Play, Product

pytest.importorskip("sentry_sdk")

#: Writes what would be sent.
TRANSPORT = """
import json, os
import sentry_sdk.transport

class ToFile(sentry_sdk.transport.Transport):
    def capture_envelope(self, envelope):
        with open(os.path.join(os.environ["SHOP_FOLDER"], "reported.jsonl"), "a") as file:
            for item in envelope.items:
                if item.headers["type"] in ("event", "transaction"):
                    file.write(json.dumps({"type": item.headers["type"], **item.payload.json}, default=str) + "\\n")

sentry_sdk.transport.make_transport = lambda options: ToFile(options)
import sentry_sdk.client
sentry_sdk.client.make_transport = sentry_sdk.transport.make_transport
"""
SENTRY = Product("sentry.py", before=TRANSPORT, environ=(("SENTRY_DSN", "http://key@127.0.0.1:1/1"),))


def errors(play: Play) -> list[dict[str, Any]]:
    return [each for each in play.lines() if each["type"] == "event"]


def attempts(play: Play) -> list[dict[str, Any]]:
    return [
        each
        for each in play.lines()
        if each["type"] == "transaction" and each["contexts"]["trace"]["op"] == "queue.task.celery"
    ]


@pytest.fixture(scope="module")
def plays(make_plays: Callable[..., dict[str, Play]]) -> dict[str, Play]:
    return make_plays(SENTRY, lambda play: any(each["transaction"] == "last" for each in attempts(play)))


def test_dump(plays):
    for kind, play in plays.items():
        print("=====", kind)
        for e in errors(play): print(e["exception"]["values"][-1]["type"], e["exception"]["values"][-1]["value"], e["tags"], e.get("transaction"))
        for e in attempts(play): print(e["transaction"], e["contexts"]["trace"]["status"], e["contexts"]["trace"]["trace_id"], [ (s["op"],s["description"], s["data"]) for s in e["spans"]])
        print(play.results)
        print(play.log[:3000])
