"""Counts, comparisons and charts of the systems side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import amqp
import pytest

from benchmarks import charts, docs_part
from benchmarks.attempts import LEDGER_SIZE, Ledger, read_ledger
from benchmarks.charts import Bar, Bars, Lines
from benchmarks.contenders import DRAMATIQ, FLOORS, PEERS, STOCK
from benchmarks.contenders import OURS as OUR_NAME
from benchmarks.copies import copy_of, identity
from benchmarks.peers import FULL, QUICK, notes
from benchmarks.peers_measures import FRESH, KILLS, Fresh, Killed, Parked, count_killed
from benchmarks.peers_report import Results, from_json, panels, ratios, tables
from benchmarks.processes import kill, proportional, tree
from benchmarks.run import Lateness, Options, Rate
from tests.support.waiting import SECONDS

RATE = Rate(100, 1.0, 100.0, 0.5, 0.3, 0.2, 0.4, 90.0, 1.0, 0.0, 0.0, 0)


def named(name, kind="classic"):
    return next(each for each in (*PEERS, *FLOORS) if (each.name, each.queue_type) == (name, kind))


def results():
    ours, stock, floor = named(OUR_NAME), named(STOCK), FLOORS[0]
    beside = Fresh(20, 0, 3.0, 9.0)
    return Results(
        machine={"RabbitMQ": "4.3.6"},
        options={**FULL, "form": "full"},
        retries={
            ours: [RATE, replace(RATE, per_second=900.0), replace(RATE, per_second=300.0)],
            stock: [replace(RATE, per_second=25.0), None, replace(RATE, per_second=100.0)],
            floor: [replace(RATE, per_second=400.0)],
        },
        lateness={ours: Lateness(300, 0, 4.0, 7.0, 9.0), stock: Lateness(300, 300, None, None, None)},
        parked={
            ours: Parked(10_000, 100_000, 96.0, 96.4, 0, beside, beside),
            stock: Parked(10_000, 100_000, 93.0, 95.0, 24, Fresh(20, 20, None, None), Fresh(20, 5, 4.0, 8.0), "x"),
        },
        killed={
            ours: [Killed("worker", 3, 1000, 0, 0, 1, 1, 0), Killed("child", 4, 1000, 0, 0, 0, 0, 0)],
            stock: [Killed("worker", 3, 1000, 2, 1, 4, 5, 0)],
        },
        errors=["stock: a reason"],
    )


def test_a_ledger_counts_the_attempts_of_all_processes_and_outlives_them(tmp_path):
    ledger = Ledger(str(tmp_path))
    ledger.add(3)
    child = os.fork()
    if not child:
        ledger.add(3)
        Ledger(str(tmp_path)).add(1)
        os._exit(9)
    os.waitpid(child, 0)
    assert (ledger.of(3), read_ledger(tmp_path, 4)) == (2, bytes([0, 1, 0, 2]))
    for _ in range(300):
        ledger.add(0)
    assert ledger.of(0) == 255
    assert FRESH >= LEDGER_SIZE > max(FULL["killed"], FULL["tasks"] * 4)


def test_killed_tasks_are_counted_as_lost_stuck_or_done_twice():
    shift = SimpleNamespace(kills=3, restarts=1)
    ledger = bytes([2, 2, 3, 5, 1, 0, 1])
    assert count_killed("child", shift, ledger, left=1) == Killed("child", 3, 7, 2, 1, 2, 4, 1)
    assert count_killed("worker", shift, bytes([2, 2]), left=5).stuck == 0


@pytest.mark.parametrize(
    "message",
    [
        amqp.Message(
            "[[1, {}], {}, {}]",
            application_headers={"id": "a" * 36, "root_id": "a" * 36, "task": "pay"},
            correlation_id="a" * 36,
            delivery_mode=2,
        ),
        amqp.Message(json.dumps({"message_id": "b" * 36, "args": [1]}).encode(), priority=0),
        amqp.Message(json.dumps({"task_id": "c" * 32}), application_headers={"task_id": "c" * 32}),
    ],
    ids=["Celery", "dramatiq", "taskiq"],
)
def test_a_copy_has_another_id_wherever_the_system_keeps_it(message):
    old = identity(message)
    copied = copy_of(message, expiration="5")
    new = identity(copied)
    assert new != old
    assert len(new) == len(old)
    everything = f"{copied.body!r} {copied.properties}"
    assert old not in everything
    assert copied.properties["expiration"] == "5"
    assert everything.count(new) == f"{message.body!r} {message.properties}".count(old)


def test_the_bytes_of_a_tree_are_shared_out_and_a_kill_ends_it():
    sleeper = "print(1, flush=True); time.sleep(600)"
    start = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {'import time; ' + sleeper!r}])"
    with subprocess.Popen([sys.executable, "-c", f"{start}; {sleeper}"], stdout=subprocess.PIPE) as parent:
        try:
            lines = [parent.stdout.readline() for _ in range(2)]  # both have started and sleep
            everyone = tree(parent.pid)
            shares = [proportional(pid) for pid in everyone]
        finally:
            kill(parent.pid)
        assert parent.wait(SECONDS) == -9
    assert lines == [b"1\n"] * 2
    assert len(everyone) == 2
    assert shares[0] > shares[1] > 100_000


def test_ratios_compare_rounds_that_both_finished_on_the_same_type_of_queue():
    assert ratios(results()) == [
        (f"tasks/s, classic: {OUR_NAME} / {STOCK}", 3.5),
        (f"tasks/s, classic: {OUR_NAME} / {FLOORS[0].name}", 0.25),
    ]


def test_results_come_back_from_json_as_they_were():
    found = from_json(results().to_json())
    assert tables(found) == tables(results())
    assert panels(found) == panels(results())
    assert found.to_json() == results().to_json()


def test_tables_have_a_cell_for_every_column_and_report_failures():
    found = tables(results())
    for _title, head, rows in found:
        assert all(len(row) == len(head) for row in rows)
    assert [title for title, _head, _rows in found] == [
        "Through one retry",
        "Late, ms",
        "While tasks wait",
        "Killed with SIGKILL",
        "Ratios",
    ]
    cells = {(title, *row[:2]): row[2:] for title, _head, rows in found for row in rows}
    assert cells["Through one retry", OUR_NAME, "classic"][:2] == ["300 (100-900)", "75%"]
    assert cells["Late, ms", STOCK, "classic"] == ["-", "-", "-", "300 of 300"]
    assert cells["While tasks wait", STOCK, "classic"][3:] == ["-", "- (20 of 20 never)", "4", "8 (5 of 20 never)"]
    assert tables(Results()) == []
    none = replace(results(), retries={named(DRAMATIQ): [None]})
    assert tables(none)[0][2] == [[DRAMATIQ, "classic", "failed", "-", "-", "-", "-"]]


def test_the_notes_describe_the_run():
    text = "\n".join(notes({**QUICK, "form": "quick"}))
    assert text.startswith("Quick form.")
    assert "the whole worker at 30, 100, 130 %" in text
    assert set(KILLS) == {"worker", "child"}
    assert Options(5, 1, 0, 0, 0, failures=1).attempts == 10


def test_the_same_figures_give_the_same_chart(tmp_path):
    lines = [("worker", charts.OURS, [0, 1], [5, 6]), ("broker", charts.OTHER, [0, 1], [7, 7])]
    drawn = [panels(results())[4], Lines("growth", "minutes", lines, [(0.5, "due")])]
    for name in ("one.svg", "two.svg"):
        charts.write(drawn, tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert text.startswith("<?xml")
    charts.write([Bars("nothing came", [Bar("a", None, "none")], log=True)], tmp_path / "none.svg", columns=1)


def test_a_part_of_a_page_is_replaced_and_the_rest_stays():
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
    assert docs_part.replaced(page, "x", " new\n") == "a\n<!-- begin x -->\n\nnew\n\n<!-- end x -->\nb\n"
    with pytest.raises(ValueError, match="begin y"):
        docs_part.replaced(page, "y", "new")


@pytest.mark.parametrize("name", ["peers-3.10", "peers-4.3"])
def test_the_documentation_has_a_part_for_each_broker(name):
    docs_part.replaced((docs_part.PAGES / "contributing/peers.md").read_text(), name, "")
