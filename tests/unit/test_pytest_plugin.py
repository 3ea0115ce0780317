"""The fixtures' behaviour when a server is missing or external."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

USES_BROKER = "def test_it(rmq_broker, rmq_vhost):\n    assert rmq_broker.url == rmq_vhost\n"


@pytest.fixture(autouse=True)
def without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKER_URL", "REDIS_URL", "CI", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(USES_BROKER)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:celery", "-p", "no:django", *arguments)


def test_a_missing_server_skips_on_a_developers_machine(pytester: pytest.Pytester) -> None:
    run(pytester, "--rabbitmq", "/no/such/server").assert_outcomes(skipped=1)


def test_a_missing_server_fails_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(pytester, "--rabbitmq", "/no/such/server")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*CI is set*"])


def test_a_broker_given_by_url_is_used_unchanged(pytester: pytest.Pytester) -> None:
    run(pytester, "--broker-url", "amqp://elsewhere//").assert_outcomes(passed=1)


def test_a_broker_given_by_the_environment_is_used_unchanged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", "amqp://elsewhere//")
    run(pytester).assert_outcomes(passed=1)


def test_an_explicit_choice_beats_the_environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_URL", "amqp://elsewhere//")
    run(pytester, "--rabbitmq", "/no/such/server").assert_outcomes(skipped=1)


def test_two_brokers_at_once_are_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--rabbitmq", "system", "--broker-url", "amqp://elsewhere//")
    result.stderr.fnmatch_lines(["*use only one of them*"])
