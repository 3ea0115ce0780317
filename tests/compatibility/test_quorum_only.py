"""A broker on which an app may use quorum queues only."""

from urllib.parse import quote

import httpx

from tests.support.waiting import SECONDS, wait_for


def test_all_durable_queues_are_quorum_queues_if_the_default_type_is(make_lab, managed, managed_vhost):
    settings = {"tiers": ["200ms"], "events": True, "exact_unit": "500ms"}
    quorum_only = make_lab(queue_type="quorum", rmq_delay=settings)
    quorum_only.worker()
    assert quorum_only.task("fails").delay(1).get(timeout=SECONDS) == 1
    quorum_only.task("explicit").delay(0.5).get(timeout=SECONDS)
    quorum_only.task("gives_up").delay()
    wait_for(lambda: quorum_only.count("rmq_delay.exhausted") == 1, "the exhausted task")

    queues = httpx.get(f"{managed.management_url}/api/queues/{quote(quorum_only.vhost, '')}", auth=("guest", "guest"))
    found = {queue["name"]: queue["type"] for queue in queues.raise_for_status().json() if queue["durable"]}
    ours = {"shop.quarantine", "shop.retry.1.200ms.quorum", "rmq_delay.shop.record", "rmq_delay.exhausted"}
    assert {"shop", "rmq_delay.events", *ours} <= set(found)
    assert {name for name, kind in found.items() if kind != "quorum"} == set()
