"""``rmq-delay capacity`` as a user types it; there is no broker."""

import pytest
from kombu import Queue

from celery_rmq_delay.operations.capacity import CONSTANTS, VERSIONS
from tests.support import commands
from tests.support.apps import app_of, bare_app
from tests.support.corpus import corpus

LOAD = ("--rate", "5000/s", "--failure-rate", "0.02")


def shop(**settings):
    queues = [Queue("celery"), Queue("mails", queue_arguments={"x-queue-type": "quorum"})]
    rmq_delay = {"tiers": ["10s", "1m"], "queues": {"mails": {"tiers": ["5m"]}, "logs": False}, **settings}
    return app_of(rmq_delay, task_queues=queues)


def run(*arguments, code=0, app=None):
    return commands.run(app or shop(), "capacity", *arguments, code=code).output


def data(*arguments, code=0, app=None):
    return commands.data(app or shop(), "capacity", *LOAD, *arguments, code=code)


def test_the_ladder_of_the_app_is_counted_by_littles_law():
    found = data()
    assert [(tier["delay_ms"], tier["parked"]) for tier in found["tiers"]] == [
        (10_000, pytest.approx(1000)),
        (60_000, pytest.approx(120)),
    ]
    assert found["outage"] is None
    assert found["workload"]["queue_type"] == "classic"
    assert found["objects"]["ladders"]["queues"] == 5


def test_another_origin_queue_has_its_own_ladder_and_type():
    found = data("--queue", "mails")
    assert [tier["delay_ms"] for tier in found["tiers"]] == [300_000]
    assert found["workload"]["queue_type"] == "quorum"
    assert "exclude this queue" in run(*LOAD, "--queue", "logs", code=2)


def test_options_change_the_ladder():
    ladder = data("--tiers", "1s, 2s,3s", "--jitter", "0.2", "--lanes", "3", "--repeat-last")["workload"]["ladder"]
    assert ladder == {"tiers_ms": [1000, 2000, 3000], "jitter": 0.2, "lanes": 3, "repeat_last": True}
    assert data("--jitter", "0.1")["workload"]["ladder"]["lanes"] == 5
    app = shop(jitter=0.3, lanes=7)
    assert data("--tiers", "1s", app=app)["workload"]["ladder"]["lanes"] == 7
    assert data("--lanes", "4", app=app)["workload"]["ladder"]["jitter"] == 0.3
    assert "add --jitter" in run(*LOAD, "--lanes", "4", code=2)


def test_with_tiers_the_app_needs_no_delay_queues():
    bare = bare_app()
    assert data("--tiers", "1m", app=bare)["parked"] == pytest.approx(6000)
    assert "install(app)" in run(*LOAD, code=1, app=bare)


def test_an_outage_is_shown_by_tier_and_in_words():
    found = data("--outage", "10m", code=1)
    assert found["outage"]["parked"] == pytest.approx(sum(tier["parked_outage"] for tier in found["tiers"]))
    words = run(*LOAD, "--outage", "10m", code=1)
    assert "AFTER 10m OUTAGE" in words
    assert "warning: Outage: the ladder lasts 1m10s" in words
    assert "an outage of 10m: 350,000 parked at its end (312 times the usual)" in words


def test_people_see_tables_and_every_constant_with_its_source_if_they_ask():
    load = (*LOAD, "--size", "2KiB", "--queue-type", "quorum", "--rabbitmq", "4.0")
    words = run(*load)
    assert "5,000 tasks/s of 2 KiB, 2 % of the attempts fail, 1 origin queue, quorum, 3 copies on 3 nodes" in words
    for heading in ("TIER", "OBJECTS OF", "MEMORY OF A NODE", "DISK OF A NODE"):
        assert f"\n{heading}" in words
    assert "CONSTANT" not in words
    assert "measured" not in words
    before, words = words, run(*load, "--verbose")
    assert words.startswith(before.rstrip())
    assert "\nCONSTANT" in words
    for constant in CONSTANTS:
        assert f"\n{constant.name} " in words
    assert words.rstrip().endswith("measured: python -m benchmarks broker_memory --rabbitmq 4.0")


def test_tasks_with_a_countdown_wait_in_levels():
    arguments = ("--countdown-rate", "100/s", "--countdown", "1h")
    found = data(*arguments)
    assert found["delayed"] == pytest.approx(360_000)
    assert [level["level"] for level in found["levels"]] == [11, 10, 9, 4]
    assert "\nLEVEL" in run(*LOAD, *arguments)
    assert "\nLEVEL" not in run(*LOAD)
    assert data(app=shop(exact_delays="hold"))["objects"]["levels"] == {"queues": 0, "exchanges": 0, "bindings": 0}
    assert data(app=shop(exact_levels=10))["objects"]["levels"]["queues"] == 10


@corpus("version", VERSIONS)
def test_json_has_the_constants_of_the_version(version):
    found = data("--rabbitmq", version)
    assert {each["name"]: each["value"] for each in found["constants"]} == {
        each.name: each.of(version) for each in CONSTANTS
    }


def test_a_warning_is_printed_and_is_exit_code_1():
    words = run(*LOAD, "--node-memory", "128MiB", code=1)
    assert "warning: Memory: a node would use" in words
    assert data("--node-memory", "128MiB", code=1)["warnings"]
    assert data("--node-memory", "8GiB")["warnings"] == []


@corpus(
    "arguments, words",
    [
        (("--rate", "fast", "--failure-rate", "0.1"), "--rate: found 'fast'"),
        (("--rate", "1/s", "--failure-rate", "3"), "--failure-rate: found '3'"),
        ((*LOAD, "--size", "big"), "--size: found 'big'"),
        ((*LOAD, "--tiers", "soon"), "This is not a delay"),
        ((*LOAD, "--outage", "long"), "--outage: found 'long'"),
        ((*LOAD, "--countdown", "1h"), "need both"),
        ((*LOAD, "--queue-type", "quorum", "--nodes", "1"), "its own node"),
        (("--rate", "1/s", "--failure-rate", "1", "--repeat-last"), "unbounded"),
    ],
)
def test_values_that_cannot_be_computed_are_wrong_options(arguments, words):
    assert words in run(*arguments, code=2)
