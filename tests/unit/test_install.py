"""The function `install`."""

import re
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker.request import Request

from celery_rmq_delay import RetryableTask, SettingsError, install
from celery_rmq_delay.app.queues import OriginQueue
from celery_rmq_delay.app.state import find_state, state_of
from celery_rmq_delay.exceptions import RmqDelayError
from celery_rmq_delay.headers import LANE
from celery_rmq_delay.ladders import Ladder, lane_of
from celery_rmq_delay.settings.values import NOT_SET
from tests.support.apps import bare_app
from tests.support.corpus import corpus


def test_install_leaves_its_state_on_the_app_and_a_second_call_needs_the_same_settings():
    app = bare_app({"tiers": ["1s"]})
    with pytest.raises(RmqDelayError, match=r"call celery_rmq_delay\.install\(app\)"):
        state_of(app)
    delay = install(app)
    assert install(app) is delay is state_of(app)
    assert delay.settings.default.ladder == Ladder((1000,))
    assert sum(str(step).count("LadderStep") for step in app.steps["consumer"]) == 1
    for other in ({"tiers": ["2s"]}, {"management_url": "http://admin:hidden@rabbit"}):
        app.conf.rmq_delay = other
        with pytest.raises(SettingsError, match="install\\(\\) was called with other settings before") as raised:
            install(app)
        assert "hidden" not in str(raised.value)


def test_install_opens_no_connection():
    app = bare_app()
    app.conf.broker_url = "amqp://no.such.host.invalid//"
    install(app)
    assert isinstance(app.amqp.queues["celery"], OriginQueue)


def test_a_wrong_setting_is_an_error_at_install_and_installs_nothing():
    app = bare_app({"tiers": ["soon"]})
    with pytest.raises(SettingsError, match=r"rmq_delay\.tiers\[0\]: found 'soon'"):
        install(app)
    assert find_state(app) is None


def test_the_error_names_the_setting_as_django_has_it():
    app = Celery("test", set_as_current=False)
    app.config_from_object({"CELERY_RMQ_DELAY": {"tiers": []}}, namespace="CELERY")
    with pytest.raises(SettingsError, match=r"^CELERY_RMQ_DELAY\.tiers: found \[\]"):
        install(app)


def test_more_retries_than_tiers_are_an_error_that_names_the_task():
    app = bare_app({"tiers": ["1s", "2s"]})
    install(app)

    @app.task(base=RetryableTask, name="greedy", max_retries=3, shared=False)
    def greedy(): ...

    with pytest.raises(SettingsError, match=r"max_retries of task greedy: found 3"):
        app.finalize(auto=False)
        greedy()


def test_max_retries_may_be_a_property_and_may_be_set_later():
    class Asked(RetryableTask):
        abstract = True

        @property
        def max_retries(self):
            return 1

    app = bare_app({"tiers": ["1s", "2s"]})
    install(app)

    @app.task(base=Asked, name="asked", shared=False)
    def asked(): ...

    @app.task(base=RetryableTask, name="set_later", shared=False)
    def set_later(): ...

    app.finalize(auto=False)
    asked()
    assert app.tasks["asked"].max_retries_set == 1
    assert app.tasks["set_later"].max_retries_set is NOT_SET
    app.tasks["set_later"].max_retries = 2
    assert app.tasks["set_later"].max_retries_set == 2


def test_the_errors_of_all_tasks_are_reported_at_once():
    app = bare_app({"tiers": ["1s"]})
    delay = install(app)
    for name, options in {"a": {"max_retries": 3}, "b": {"tiers": ["soon"]}, "c": {"acks_late": False}}.items():
        app.task(base=RetryableTask, name=name, shared=False, **options)(pays)
    app.task(base=RetryableTask, name="fine", shared=False)(pays)
    for _ in range(2):
        with pytest.raises(SettingsError) as raised:
            delay.finalize()
        assert re.findall(r"^(\w+) of task (\w)", str(raised.value), re.MULTILINE) == [
            ("max_retries", "a"),
            ("tiers", "b"),
            ("acks_late", "c"),
        ]
    app.close()


def test_a_task_defined_before_install_is_checked_too():
    app = bare_app({"tiers": ["1s"]})

    @app.task(base=RetryableTask, name="greedy", max_retries=3, shared=False)
    def greedy(): ...

    app.finalize()
    with pytest.raises(SettingsError, match=r"max_retries of task greedy: found 3"):
        install(app)


def test_tasks_advance_through_the_ladder_of_their_queue_or_their_own():
    app = bare_app({"tiers": ["1s"], "queues": {"slow": {"tiers": ["1h"]}}}, task_routes={"mail.*": {"queue": "slow"}})

    @app.task(base=RetryableTask, name="mail.send", shared=False)
    def send(): ...

    @app.task(base=RetryableTask, name="shop.ping", tiers=["5s", "6s"], shared=False)
    def ping(): ...

    delay = install(app)
    app.finalize()
    assert delay.ladder("slow", send) == Ladder((3_600_000,))
    assert delay.ladder("slow", ping) == Ladder((5000, 6000))
    # A task's own ladder is applied to the queue in its route.
    # Other tests' shared tasks belong to every app of the process, so only these two are checked.
    own = ("mail.send", "shop.ping")
    assert [delay.tasks_of("slow")[task] for task in own] == [None, None]
    assert [delay.tasks_of("celery")[task] for task in own] == [None, Ladder((5000, 6000))]
    assert delay.plan("celery", reason_routing=True).tasks == delay.tasks_of("celery")
    assert delay.is_planned("celery", ping)
    assert not delay.is_planned("slow", ping)


def test_a_queue_that_is_left_alone_has_no_plan():
    delay = install(bare_app({"queues": {"theirs": False}}))
    with pytest.raises(RmqDelayError, match="this queue is left alone"):
        delay.plan("theirs", reason_routing=True)


def test_messages_get_the_lane_of_their_own_app_where_a_ladder_has_jitter():
    sent = []

    def look(headers, **_):
        sent.append(headers)

    every: list[Any] = [{"tiers": ["1s"]}, {"jitter": 0.2, "lanes": 7}, {"jitter": 0.2, "lanes": 5}]
    apps = [bare_app(each, broker="memory://") for each in every]
    for app in apps:
        install(app)
    signals.before_task_publish.connect(look)
    try:
        for app in apps:
            app.send_task("mail.send", task_id="some-id", headers={"tenant": "north"})
            app.send_task("mail.send")
    finally:
        signals.before_task_publish.disconnect(look)
    assert [headers.get(LANE) for headers in sent[::2]] == [None, lane_of("some-id", 7), lane_of("some-id", 5)]
    assert [headers.get(LANE) for headers in sent[3::2]] == [
        lane_of(headers["id"], lanes) for headers, lanes in zip(sent[3::2], (7, 5), strict=True)
    ]
    assert {headers.get("tenant") for headers in sent[::2]} == {"north"}


def test_a_route_cached_before_install_leads_to_a_queue_with_a_ladder_afterwards():
    app = bare_app({"tiers": ["1s"]})
    assert not isinstance(app.amqp.router.route({}, "shop.charge")["queue"], OriginQueue)
    install(app)
    assert isinstance(app.amqp.router.route({}, "shop.charge")["queue"], OriginQueue)


def test_a_max_retries_in_retry_kwargs_that_the_ladder_cannot_give_is_refused():
    app = bare_app({"tiers": ["1s", "2s"]})
    install(app)
    with pytest.raises(SettingsError, match=r"max_retries of task pays, in retry_kwargs: found 3"):
        app.task(base=RetryableTask, name="pays", shared=False, lazy=False, retry_kwargs={"max_retries": 3})(pays)


def pays():
    """Do nothing."""


@corpus(
    "option, value",
    [
        ("acks_late", False),
        ("acks_on_failure_or_timeout", False),
        ("acks_on_failure", False),
        ("acks_on_timeout", False),
        ("reject_on_worker_lost", True),
        ("retry_on_worker_lost", True),
        ("Request", Request),
        ("Request", "celery.worker.request:Request"),
        ("Strategy", "celery.worker.strategy:default"),
    ],
)
def test_an_option_by_which_a_retryable_task_would_be_acked_too_early_is_refused(option, value):
    app = Celery("options", set_as_current=False)
    install(app)
    with pytest.raises(SettingsError, match=f"{option} of task pays: found {value!r}.*leave {option} out"):
        app.task(name="pays", base=RetryableTask, lazy=False, shared=False, **{option: value})(pays)
    app.close()


def test_celerys_own_tasks_keep_its_behaviour_where_retryable_is_the_class_of_all_tasks():
    stock = Celery("stock", set_as_current=False)
    app = Celery("ours", set_as_current=False, task_cls=RetryableTask)
    install(app)
    for each in (stock, app):
        each.conf.task_acks_on_failure_or_timeout = False
        each.finalize()
    names = [name for name in stock.tasks if name.startswith("celery.")]
    options = ["acks_late", "acks_on_failure_or_timeout", "reject_on_worker_lost", "max_retries", "Request", "Strategy"]
    assert "celery.chord_unlock" in names
    for name in names:
        for option in options:
            assert getattr(app.tasks[name], option) == getattr(stock.tasks[name], option)
        assert app.tasks[name].retry.__func__ is stock.tasks[name].retry.__func__
    assert app.task(name="pays", lazy=False, shared=False)(pays).acks_late
    state_of(app).check_tasks()
    retryable = {task.name for task in state_of(app).retryable_tasks()}
    assert "pays" in retryable
    assert retryable.isdisjoint(names)
    stock.close()
    app.close()
