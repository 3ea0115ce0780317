"""What the doctor finds on a broker, and what it says of it."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import httpx
import kombu
import pytest
from celery import Celery

from celery_rmq_delay import RmqDelayError, install
from celery_rmq_delay.doctor import Finding, examine
from celery_rmq_delay.exceptions import ManagementError
from celery_rmq_delay.management import URL_VARIABLE, Management
from celery_rmq_delay.testing import PrivateBroker
from celery_rmq_delay.testing.installation import Installation
from celery_rmq_delay.testing.ports import free_port
from celery_rmq_delay.topology.record import locked_record
from celery_rmq_delay.topology.switch import apply_plan
from tests.waiting import wait_for

from .lab import HOUR, Lab
from .shop import opened, park, plan_of, shop

#: ms between the statistics that the management API shows; 5 s by default.
STATISTICS = "collect_statistics_interval = 200"


@pytest.fixture(scope="module")
def managed(rmq_installation: Installation) -> Iterator[PrivateBroker]:
    """A broker with the management plugin."""
    with PrivateBroker(rmq_installation.server, rmq_installation.root, management=True, config=STATISTICS) as broker:
        broker.evaluate("application:set_env(rabbit, quorum_tick_interval, 200)")
        yield broker


@pytest.fixture(params=["classic", "quorum"])
def managed_lab(managed: PrivateBroker, request: pytest.FixtureRequest) -> Iterator[Lab]:
    lab = Lab(managed.url, request.param)
    yield lab
    lab.close()


def found(app: Celery, management_url: str | None = None) -> dict[str, Finding]:
    """Return the findings that need a person, by code."""
    every = examine(app, management_url=management_url, use_management=management_url is not None)
    return {each.code: each for each in every if each.needs_a_person}


def set_policy(broker: PrivateBroker, queue: str, definition: dict[str, Any]) -> None:
    policy = {"pattern": f"^{queue}$", "definition": definition, "apply-to": "queues"}
    httpx.put(f"{broker.management_url}/api/policies/%2F/{queue}", json=policy).raise_for_status()


def notes(app: Celery) -> set[str]:
    return {each.code for each in examine(app, use_management=False) if not each.needs_a_person}


def test_nothing_is_found_where_all_is_well(managed: PrivateBroker, managed_lab: Lab) -> None:
    app, _ = opened(managed_lab)
    assert found(app, managed.management_url) == {}


def test_an_app_that_was_never_applied_misses_its_objects(lab: Lab) -> None:
    app = shop(lab)
    assert set(found(app)) == {"missing", "ladder"}
    assert "rmq-delay apply" in found(app)["missing"].mend
    assert set(found(app)) == {"missing", "ladder"}


def test_an_object_that_somebody_deleted_is_missing(lab: Lab) -> None:
    app, plan = opened(lab)
    lab.channel.exchange_delete(plan.names.returns)
    assert plan.names.returns in found(app)["missing"].found


def test_an_object_with_other_arguments_is_a_conflict(lab: Lab) -> None:
    app, plan = opened(lab)
    rung = plan.rung_queue(1, HOUR).name
    lab.channel.queue_delete(rung)
    lab.queue(rung, **{"x-message-ttl": 1})
    finding = found(app)["conflict"]
    assert finding.severity == "error"
    assert rung in finding.found


def test_settings_that_were_not_applied_are_found(lab: Lab) -> None:
    opened(lab, tiers=["1h", "2h", "3h"])
    app = shop(lab, tiers=["1h", "2h"])
    finding = found(app)["ladder"]
    assert "1h 2h 3h" in finding.found
    apply_plan(lab.connection, plan_of(lab, app))
    assert found(app) == {}
    assert notes(app) >= {"retired"}


def test_a_switch_that_was_cut_off_is_found(lab: Lab) -> None:
    app, plan = opened(lab)
    with locked_record(lab.connection, plan.record_queue(), 10) as (_, record):
        assert record.value is not None
        record.save({**record.value, "phase": "standby", "following": plan.ladder.id})
    assert set(found(app)) == {"unfinished"}


def test_a_queue_without_our_dead_letter_exchange_is_found_and_left_as_it_is(
    managed: PrivateBroker, managed_lab: Lab
) -> None:
    lab = managed_lab
    app = shop(lab)
    plan = plan_of(lab, app)
    lab.queue(plan.queue)
    apply_plan(lab.connection, plan)
    for url in (None, managed.management_url):
        findings = found(app, url)
        assert set(findings) == {"dlx-missing"}
        assert plan.names.dlx(plan.queue) in findings["dlx-missing"].mend
    lab.queue(plan.queue)  # still the same arguments


def test_a_policy_that_brings_the_dead_letter_exchange_is_enough(managed: PrivateBroker, managed_lab: Lab) -> None:
    lab = managed_lab
    app = shop(lab)
    plan = plan_of(lab, app)
    lab.queue(plan.queue)
    apply_plan(lab.connection, plan)
    set_policy(managed, plan.queue, {"dead-letter-exchange": plan.names.dlx(plan.queue)})
    wait_for(lambda: not found(app, managed.management_url), "the policy")


def test_a_queue_with_other_arguments_of_its_own_is_found(classic_lab: Lab) -> None:
    app, plan = opened(classic_lab)
    app.amqp.queues[plan.queue].queue_arguments["x-max-priority"] = 5
    assert set(found(app)) == {"queue-arguments"}


def test_a_delivery_limit_below_the_ladder_is_found(managed: PrivateBroker) -> None:
    lab = Lab(managed.url, "quorum")
    app = shop(lab, tiers=["1h", "2h", "3h"])
    plan = plan_of(lab, app)
    app.amqp.queues[plan.queue].queue_arguments["x-delivery-limit"] = 4
    lab.applied(plan, **{"x-delivery-limit": 4})
    for url in (None, managed.management_url):
        finding = found(app, url)["delivery-limit"]
        assert "is 4; its ladder needs 5" in finding.found
    lab.close()


def test_a_policy_that_lowers_the_delivery_limit_is_found(managed: PrivateBroker) -> None:
    lab = Lab(managed.url, "quorum")
    app, plan = opened(lab)
    set_policy(managed, plan.queue, {"delivery-limit": 2})
    wait_for(lambda: "delivery-limit" in found(app, managed.management_url), "the policy")
    lab.close()


def test_dead_letters_that_nobody_takes_are_found(managed: PrivateBroker) -> None:
    lab = Lab(managed.url, "quorum")
    app, plan = opened(lab)
    if not lab.tells_death_reason:
        lab.channel.exchange_unbind(plan.names.tasks(plan.queue), plan.names.other(plan.queue))
    lab.channel.exchange_delete(plan.names.tasks(plan.queue))
    lab.channel.exchange_delete(plan.names.other(plan.queue))
    park(lab, plan, "a")
    finding = wait_for(lambda: found(app, managed.management_url).get("dead-letters-waiting"), "the statistics", 30)
    assert plan.queue in finding.found
    lab.close()


def test_messages_that_wait_for_a_person_are_noted(lab: Lab) -> None:
    app, plan = opened(lab)
    lab.publish(plan.exhausted)
    lab.publish(f"{plan.queue}.suspects")
    assert notes(app) >= {"exhausted", "suspects"}


def test_a_missing_management_api_is_found_with_the_mend(classic_lab: Lab) -> None:
    app, _ = opened(classic_lab)
    finding = found(app, f"http://127.0.0.1:{free_port()}")["management"]
    assert "rabbitmq-plugins enable rabbitmq_management" in finding.mend
    assert URL_VARIABLE in finding.mend


def test_a_broker_that_is_not_there_is_found() -> None:
    app = Celery("shop", broker=f"amqp://guest:secret@127.0.0.1:{free_port()}//", set_as_current=False)
    install(app)
    (finding,) = examine(app)
    assert (finding.code, finding.severity) == ("unreachable", "error")
    assert "secret" not in finding.subject


def test_a_broker_that_does_not_let_the_user_in_is_found(rmq_broker: Any) -> None:
    connection = kombu.Connection(rmq_broker.url)
    broker = connection.clone(userid="nobody", password="secret").as_uri(include_password=True)
    app = Celery("shop", broker=broker, set_as_current=False)
    install(app)
    (finding,) = examine(app)
    assert finding.code == "unreachable"
    assert "ACCESS_REFUSED" in finding.found
    assert "secret" not in str(finding)


def test_a_transport_that_cannot_park_is_found() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    install(app)
    (finding,) = examine(app)
    assert finding.code == "transport"


def test_an_app_without_install_is_refused() -> None:
    with pytest.raises(RmqDelayError, match=r"install\(app\)"):
        examine(Celery("shop", set_as_current=False))


# -- the management API ------------------------------------------------------------------------------------------------


def test_the_api_is_looked_for_on_the_brokers_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with Management.of(kombu.Connection("amqp://me:s%40@rabbit.example:5673/a%2Fb")) as plain:
        assert (plain.url, plain.vhost, plain.user) == ("http://rabbit.example:15672", "a/b", "me")
    with Management.of(kombu.Connection("amqps://rabbit.example//")) as secure:
        assert (secure.url, secure.vhost) == ("https://rabbit.example:15671", "/")
    monkeypatch.setenv(URL_VARIABLE, "https://admin:x@proxy.example/rabbit/")
    with Management.of(kombu.Connection("amqp://me@rabbit.example//")) as named:
        assert (named.url, named.user) == ("https://proxy.example/rabbit", "admin")


def test_the_api_tells_a_queues_arguments_and_policy(managed: PrivateBroker, managed_lab: Lab) -> None:
    name = managed_lab.queue(None, **{"x-max-length": 7})
    with Management.of(managed_lab.connection, managed.management_url) as api:
        assert tuple(map(int, api.version().split("."))) == managed.version
        detail = api.queues()[name]
    assert (detail.type, detail.arguments["x-max-length"], detail.policy) == (managed_lab.queue_type, 7, None)
    assert detail.dead_letters_waiting == 0


def test_a_user_whom_the_api_does_not_let_in_is_named(managed: PrivateBroker) -> None:
    with (
        Management(f"http://127.0.0.1:{managed.settings.management_port}", "/", "nobody", "x") as api,
        pytest.raises(ManagementError, match=r"does not let user 'nobody' in .*monitoring"),
    ):
        api.version()


def test_a_vhost_that_the_api_does_not_know_is_named(managed: PrivateBroker) -> None:
    with (
        Management(str(managed.management_url), "no/such", "guest", "guest") as api,
        pytest.raises(ManagementError, match="'no/such'"),
    ):
        api.queues()


class Stranger(BaseHTTPRequestHandler):
    """A web server that is no RabbitMQ."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_: Any) -> None:
        pass


def test_an_address_of_something_else_is_said_to_be_that() -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with (
            Management(f"http://127.0.0.1:{server.server_port}", "/", "guest", "guest") as api,
            pytest.raises(ManagementError, match="not as a RabbitMQ management API"),
        ):
            api.version()
        server.shutdown()


@pytest.mark.parametrize("url", ["rabbit:15672", "ftp://rabbit", "http://"])
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ManagementError, match="is no URL"):
        Management(url, "/", "guest", "guest")
