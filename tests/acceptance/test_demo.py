"""The demo as its users run it, and the reconciliation that determines its exit code."""

import os
import re
import signal
import subprocess
import sys
import threading
from itertools import islice

import amqp
import psutil
import pytest

from celery_rmq_delay.testing import PrivateBroker
from example_django_project.demo.reconcile import Evidence, Sent, reconcile
from tests.support import ROOT
from tests.support.corpus import corpus, slow
from tests.support.processes import as_a_background_job
from tests.support.waiting import SECONDS, wait_for

#: Delay queues of the task that charges orders: its outage is certain, its tiers and lanes are not.
LADDER = "payments.retry."
KINDS = {"charge", "send_receipt", "import_prices", "sales_report", "warehouse.pick"}


class Demo:
    def __init__(self, folder, arguments, environment):
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

    def _read(self):
        with self.process.stdout as lines:
            for line in lines:
                self.output += line

    def wait_for(self, condition):
        wait_for(lambda: condition() or self.process.poll() is not None, self.output)
        assert self.process.poll() is None, self.output

    def exit_code(self, timeout=SECONDS):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The demo still runs after {timeout:g} s: {self.processes()}\n{self.output}")
        self._reader.join(SECONDS)
        assert not self._reader.is_alive(), f"Something of the demo still has its output open: {self.processes()}"
        return code

    def left_behind(self):
        """Return files and processes that the demo has left."""
        return [*self.processes(), *(path.name for path in self.folder.iterdir())]

    def processes(self):
        return [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline", "environ"])
            if str(self.folder) in (process.info["environ"] or {}).get("TMPDIR", "")
            or str(self.folder) in " ".join(process.info["cmdline"] or [])
        ]

    def java(self):
        """Command lines of the demo's Spark, as soon as it computes."""
        return [each for each in self.processes() if "org.apache.spark.deploy.SparkSubmit" in each]


@pytest.fixture
def start_demo(tmp_path):
    started: list[Demo] = []
    folder = tmp_path / "tmp"
    folder.mkdir()

    def start(*arguments, **environment):
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
def test_a_signal_ends_a_demo_whose_cleanup_waits_for_an_answer_that_never_comes(number, code):
    program = [sys.executable, "-c", HANGS]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(SECONDS) == code


def table(output):
    """The summary: for each task, and for the total, sent, first try, recovered, gave up, tiers used, missing."""
    rows = [[cell.strip() for cell in line.strip("│ \n").split("│")] for line in output.splitlines() if "│" in line]
    return {name: [0 if cell == "·" else int(cell) for cell in cells] for name, *cells in rows}


@pytest.mark.slow
def test_every_order_is_accounted_for_and_insights_follow(start_demo):
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
def test_a_run_fails_and_names_the_order_that_was_lost(start_demo, rmq_installation):
    installation = rmq_installation
    with PrivateBroker(installation.server, installation.root) as broker:
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


def steal(address, queues, demo):
    """Remove one parked message; return its task's id."""
    taken: list[amqp.Message] = []
    with amqp.Connection(address, "guest", "guest") as connection:
        channel = connection.channel()

        def take():
            found = (channel.basic_get(queue, no_ack=True) for queue in queues)
            taken.extend(islice(filter(None, found), 1))
            return taken

        demo.wait_for(take)
    return str(taken[0].headers["id"])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [slow(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_demo_that_is_stopped_leaves_nothing_running(start_demo, number, code):
    demo = start_demo("--orders", "20")
    demo.wait_for(lambda: "settled" in demo.output)
    assert demo.left_behind()

    demo.process.send_signal(number)

    assert demo.exit_code() == code, demo.output
    assert demo.left_behind() == []


@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_nothing_running_and_no_files(start_demo):
    demo = start_demo("--orders", "20")
    demo.wait_for(lambda: "settled" in demo.output)

    demo.process.kill()

    wait_for(lambda: not demo.left_behind(), "the end of its servers")


@pytest.mark.slow
def test_ctrl_c_during_the_analytics_ends_their_java_too(start_demo):
    demo = start_demo("--orders", "20", ONCE="1")
    demo.wait_for(demo.java)

    demo.process.send_signal(signal.SIGINT)

    assert demo.exit_code() == 130, demo.output
    assert "Traceback" not in demo.output
    assert demo.left_behind() == []


def test_a_broker_that_does_not_answer_is_one_clear_message(start_demo):
    demo = start_demo(ONCE="1", BROKER_URL="amqp://guest:guest@127.0.0.1:1//", REDIS_URL="redis://127.0.0.1:1/0")

    assert demo.exit_code() == 1
    assert "Traceback" not in demo.output
    assert "BROKER_URL" in demo.output
    assert demo.left_behind() == []


ORDER = Sent("charge", "charge-1", "1")
PAID = Evidence(succeeded={"charge-1": 2}, paid={"1": 2}, charged={"1"})


def test_orders_balance_that_are_paid_exhausted_or_given_up_and_one_that_is_nowhere_is_missing():
    paid = reconcile([ORDER], PAID)
    assert (paid.holds, paid.sent, paid.settled, paid.orders.recovered) == (True, 1, 1, 1)
    two = [ORDER, Sent("charge", "charge-2", "2")]
    ended = reconcile(two, Evidence(exhausted={"charge-1": ["gave_up"], "charge-2": ["retries_used"]}))
    assert (ended.holds, ended.orders.gave_up, ended.orders.exhausted) == (True, 1, 1)
    lost = reconcile(two, PAID)
    assert (lost.holds, lost.missing, lost.orders.missing) == (False, ["charge-2"], ["charge-2"])
    receipt, done = Sent("send_receipt", "receipt-1", "1"), {"receipt-1": 0}
    assert not reconcile([receipt], Evidence(succeeded=done)).holds, "the mail server never saw it"
    assert reconcile([receipt], Evidence(succeeded=done, mailed={"1": 1})).holds


@corpus(
    "found, problem",
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
def test_witnesses_that_disagree_are_a_problem(found, problem):
    balance = reconcile([ORDER], found)
    assert problem in "; ".join(balance.problems)
    assert not balance.holds
