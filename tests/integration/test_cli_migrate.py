"""The command `migrate` as a user types it."""

import pytest

from celery_rmq_delay.operations.celery_native_delay import level_names
from tests.support.commands import data, run


@pytest.mark.brokers
def test_a_dry_run_a_migration_and_a_removal(movers):
    app = movers.app
    movers.declare_celery_native()
    movers.call_celery_native(5000, 6000)
    movers.call_celery_native(7000, queue="mails")
    movers.holds(3, *level_names())
    lines = run(app, "migrate", "--from", "celery-native", "--dry-run").output.splitlines()
    assert lines[0] == "celery-native: 3 messages waited."
    assert set(lines[1:3]) == {"2 for orders would be moved to levels", "1 for mails would be moved to levels"}
    assert lines[3:] == ["3 wait there now."]
    found = data(app, "migrate", "--from", "celery-native", "--queue", "mails")
    assert (found["moved"], found["left"], found["after"]) == (
        {"mails": 1}, {"for another queue than asked for": 2}, 2,
    )  # fmt: skip
    assert (found["before"], found["taken"], found["copies"], found["adds_up"]) == (3, 1, 1, True)
    text = run(app, "migrate", "--from", "celery-native", "--remove", "--no-management").output
    assert "2 for orders moved to levels" in text
    assert "removed exchange celery_delayed_delivery" in text
    assert "0 wait there now." in text
    text = run(app, "migrate", "--from", "celery-native").output
    assert text == "celery-native: 0 messages waited.\n0 wait there now.\n"


def test_poison_messages_are_reported_with_exit_code_1_and_a_removal_needs_the_api(movers):
    app = movers.app
    movers.declare_celery_native()
    movers.put(".".join("0" * 23 + "10000") + ".unknown", b"x", exchange="celery_delayed_27")
    movers.holds(1, *level_names())
    text = run(app, "migrate", "--from", "celery-native", code=1).output
    assert "1 not understood, put into p.migrate.poison: no queue of the app takes the routing key 'unknown'" in text
    assert movers.count("p.migrate.poison") == 1
    arguments = ["--from", "celery-native", "--remove", "--management-url", "http://127.0.0.1:9"]
    (line,) = run(app, "migrate", *arguments, code=1).output.splitlines()
    assert "--no-management skips this check" in line
    assert movers.count_celery_native() == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--from", "plugin"], "are delivered when they are due"),
        (["--from", "levels"], "the same queues"),
        (["--from", "celery-native", "--to", "loop"], "add 'loop' to exact_delays"),
        (["--from", "hold", "--management-url", "http://127.0.0.1:9"], "No management API"),
    ],
)
def test_a_migration_that_cannot_be_done_is_one_line(movers, arguments, problem):
    (line,) = run(movers.app, "migrate", *arguments, code=1).output.splitlines()
    assert line.startswith("Error: ")
    assert problem in line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--from", "levels", "--remove"], "--remove is for --from celery-native"),
        (["--from", "celery-native", "--remove", "--dry-run"], "leave out --dry-run"),
        (["--from", "levels", "--source-queue", "x"], "--source-queue is for --from hold"),
        (["--from", "levels", "--source-unit", "soon"], "--source-unit"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_options(movers, arguments, problem):
    assert f"Error: {problem}" in run(movers.app, "migrate", *arguments, code=2).output.replace(
        "Error: --remove moves all messages first: ", "Error: "
    )
