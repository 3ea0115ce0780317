"""The demo as its users run it, and the reconciliation that determines its exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import amqp
import psutil
import pytest

from celery_rmq_delay.testing import PrivateBroker
from example_django_project.demo.reconcile import Evidence, Sent, reconcile
from tests.support import ROOT
from tests.support.background import as_a_background_job
from tests.support.waiting import SECONDS, wait_for

#: Delay queues of the task that charges orders: its outage is certain, its tiers and lanes are not.
LADDER = "payments.retry."
KINDS = {"charge", "send_receipt", "import_prices", "sales_report", "warehouse.pick"}


class Demo:
    """A running demo and what it printed so far."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.folder = folder
        outside = {name: value for name, value in os.environ.items() if name not in {"BROKER_URL", "REDIS_URL"}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "example_django_project.demo", *arguments],
            cwd=ROOT,
            # All temporary files go below this test's folder, so that leftovers are found.
            env={**outside, "TMPDIR": str(folder), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=as_a_background_job,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.output += line

    def wait_for(self, condition: Callable[[], object], timeout: float = 300) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def exit_code(self, timeout: float = SECONDS) -> int:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The demo still runs after {timeout:g} s: {self.processes()}\n{self.output}")
        self._reader.join(SECONDS)
        assert not self._reader.is_alive(), f"Something of the demo still has its output open: {self.processes()}"
        return code

    def left_behind(self) -> list[str]:
        """Return files and processes that the demo has left."""
        return [*self.processes(), *(path.name for path in self.folder.iterdir())]

    def processes(self) -> list[str]:
        """Command lines of the demo's processes."""
        return [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline", "environ"])
            if str(self.folder) in (process.info["environ"] or {}).get("TMPDIR", "")
            or str(self.folder) in " ".join(process.info["cmdline"] or [])
        ]

    def java(self) -> list[str]:
        """Command lines of the demo's Spark, as soon as it computes."""
        return [each for each in self.processes() if "org.apache.spark.deploy.SparkSubmit" in each]


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []
    folder = tmp_path / "tmp"
    folder.mkdir()

    def start(*arguments: str, **environment: str) -> Demo:
        started.append(Demo(folder, arguments, environment))
        return started[-1]

    yield start
    for demo in started:
        demo.process.terminate()
        demo.process.wait(SECONDS)


HANGS = """
import time
from example_django_project.demo import stack
stack.AGAIN = 0.1
with stack.ending_on_signals():
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_ends_a_demo_whose_cleanup_waits_for_an_answer_that_never_comes(
    number: signal.Signals, code: int
) -> None:
    program = [sys.executable, "-c", HANGS]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(SECONDS) == code


def table(output: str) -> dict[str, list[int]]:
    """The summary: for each task, and for the total, sent, first try, recovered, gave up, tiers used, missing."""
    rows = [[cell.strip() for cell in line.strip("│ \n").split("│")] for line in output.splitlines() if "│" in line]
    return {name: [0 if cell == "·" else int(cell) for cell in cells] for name, *cells in rows}


@pytest.mark.slow
def test_every_order_is_accounted_for_and_insights_follow(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo(ONCE="1")
    code = demo.exit_code(timeout=580)

    assert code == 0, demo.output
    assert "Everything is accounted for" in demo.output
    rows = table(demo.output)
    total = rows.pop("total")
    assert set(rows) == KINDS
    for name, (sent, *ends) in {**rows, "total": total}.items():
        assert sum(ends) == sent > 0, name
    assert [sum(column) for column in zip(*rows.values(), strict=True)] == total
    assert total[-1] == 0
    sums = re.search(r"^(\d+) orders = (\d+) \D+ (\d+) \D+ (\d+) \D+ (\d+) \D+ (\d+) unaccounted$", demo.output, re.M)
    assert sums is not None, demo.output
    orders, first_try, retried, *others, unaccounted = map(int, sums.groups())
    assert orders == 300 == first_try + retried + sum(others)
    assert retried > 50
    assert unaccounted == 0
    shown = re.search(r"shows (\d+) exhausted, (\d+) recovered, in (\d+) failure groups", demo.output)
    assert shown is not None, demo.output
    assert [int(shown[1]), int(shown[2])] == [total[3] + total[4], total[2]], "the admin's tables agree"
    assert int(shown[3]) >= 3
    insights = re.search(r"insightrun/ show (\d+) curves, (\d+) tiers, (\d+) incidents, (\d+) ladders", demo.output)
    assert insights is not None, demo.output
    curves, tiers, incidents, ladders = map(int, insights.groups())
    assert min(curves, tiers, ladders) > 0, demo.output
    # A round that is not in two blocks of half an hour has no usual failures to compare with.
    assert (incidents > 0) != ("this needs other half hours" in demo.output), demo.output
    assert rows["send_receipt"][0] == first_try + retried, "every paid order has a receipt"
    assert demo.left_behind() == []


@pytest.mark.slow
def test_a_run_fails_and_names_the_order_that_was_lost(
    start_demo: Callable[..., Demo], rmq_installation: object, tmp_path: Path
) -> None:
    installation = rmq_installation
    with PrivateBroker(installation.server, installation.root) as broker:  # type: ignore[attr-defined]
        demo = start_demo("--orders", "150", ONCE="1", BROKER_URL=broker.url)
        demo.wait_for(lambda: "settled" in demo.output)
        tiers = [name for name in broker.rabbitmqctl("-q", "list_queues", "name").split() if LADDER in name]
        stolen = steal(f"127.0.0.1:{broker.port}", tiers, demo)
        code = demo.exit_code()

    assert code == 1, demo.output
    assert f"unaccounted: {stolen}" in demo.output
    assert table(demo.output)["charge"][-1] == 1
    assert "+ 1 unaccounted" in demo.output
    assert demo.left_behind() == []


def steal(address: str, queues: list[str], demo: Demo) -> str:
    """Remove one parked message; return its task's id."""
    assert queues
    taken: list[amqp.Message] = []
    with amqp.Connection(address, "guest", "guest") as connection:
        channel = connection.channel()

        def take() -> bool:
            found = (channel.basic_get(queue, no_ack=True) for queue in queues)
            taken.extend(islice(filter(None, found), 1))
            return bool(taken)

        demo.wait_for(take)
    return str(taken[0].headers["id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGINT, 0)]
)
def test_a_demo_that_is_stopped_leaves_nothing_running(
    start_demo: Callable[..., Demo], number: signal.Signals, code: int
) -> None:
    demo = start_demo("--orders", "20")
    demo.wait_for(lambda: "settled" in demo.output)
    assert demo.left_behind()

    demo.process.send_signal(number)

    assert demo.exit_code() == code, demo.output
    assert demo.left_behind() == []


@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_nothing_running_and_no_files(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--orders", "20")
    demo.wait_for(lambda: "settled" in demo.output)

    demo.process.kill()

    wait_for(lambda: not demo.left_behind(), "the end of its servers")


@pytest.mark.slow
def test_ctrl_c_during_the_analytics_ends_their_java_too(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--orders", "20", ONCE="1")
    demo.wait_for(demo.java)

    demo.process.send_signal(signal.SIGINT)

    assert demo.exit_code() == 130, demo.output
    assert "Traceback" not in demo.output
    assert demo.left_behind() == []


def test_a_broker_that_does_not_answer_is_one_clear_message(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo(ONCE="1", BROKER_URL="amqp://guest:guest@127.0.0.1:1//", REDIS_URL="redis://127.0.0.1:1/0")

    assert demo.exit_code() == 1
    assert "Traceback" not in demo.output
    assert "BROKER_URL" in demo.output
    assert demo.left_behind() == []


ORDER = Sent("charge", "charge-1", "1")
PAID = Evidence(succeeded={"charge-1": 2}, paid={"1": 2}, charged={"1"})


def test_a_task_that_is_nowhere_is_missing() -> None:
    balance = reconcile([ORDER, Sent("charge", "charge-2", "2")], PAID)

    assert balance.missing == ["charge-2"]
    assert balance.orders.missing == ["charge-2"]
    assert not balance.holds


def test_a_paid_order_balances() -> None:
    balance = reconcile([ORDER], PAID)

    assert balance.holds
    assert (balance.sent, balance.settled, balance.orders.recovered) == (1, 1, 1)


def test_an_exhausted_order_balances_and_shows_whether_it_was_given_up() -> None:
    found = Evidence(exhausted={"charge-1": ["gave_up"], "charge-2": ["retries_used"]})
    balance = reconcile([ORDER, Sent("charge", "charge-2", "2")], found)

    assert balance.holds
    assert (balance.orders.gave_up, balance.orders.exhausted) == (1, 1)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (Evidence(succeeded={"charge-1": 0}, charged={"1"}), "its order is not paid"),
        (Evidence(succeeded={"charge-1": 0}, paid={"1": 0}), "its order is not charged"),
        (Evidence(exhausted={"charge-1": ["gave_up", "gave_up"]}), "2 times in the exhausted queue"),
        (
            Evidence(succeeded={"charge-1": 0}, paid={"1": 0}, charged={"1"}, exhausted={"charge-1": ["gave_up"]}),
            "succeeded and is exhausted",
        ),
    ],
)
def test_witnesses_that_disagree_are_a_problem(found: Evidence, problem: str) -> None:
    balance = reconcile([ORDER], found)

    assert problem in "; ".join(balance.problems)
    assert not balance.holds


def test_a_receipt_that_the_mail_server_never_saw_is_a_problem() -> None:
    receipt = Sent("send_receipt", "receipt-1", "1")

    assert not reconcile([receipt], Evidence(succeeded={"receipt-1": 0})).holds
    assert reconcile([receipt], Evidence(succeeded={"receipt-1": 0}, mailed={"1": 1})).holds
