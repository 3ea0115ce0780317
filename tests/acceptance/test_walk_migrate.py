"""The way from stock Celery to this package and back, by the blocks of code in two pages of docs/migrate."""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import kombu
import pytest

from celery_rmq_delay.amqp.apply import ready_counts
from celery_rmq_delay.management.client import Management
from tests.support import ROOT
from tests.support.processes import running_worker
from tests.support.snippets import section
from tests.support.waiting import SECONDS, wait_for

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/migrate/from-stock-celery.md"
WAY_BACK = ROOT / "docs/migrate/upgrade.md"

#: With the package and without it the same task, but for its base class.
TASKS = """
class Refused(Exception):
    pass


@app.task(%sbind=True, name="proj.charge", autoretry_for=(Refused,), default_retry_delay=1, acks_late=True)
def charge(self, number, fails=0):
    with open(os.environ["ATTEMPTS"], "a") as attempts:
        attempts.write(f"{number} {self.request.retries}\\n")
    if self.request.retries < fails:
        raise Refused(number)


@app.task(name="proj.ping")
def ping(number):
    with open(os.environ["ATTEMPTS"], "a") as attempts:
        attempts.write(f"{number} 0\\n")
"""
RETRYABLE_TASKS = f"from celery_rmq_delay import RetryableTask\n{TASKS % 'base=RetryableTask, '}"
#: The tiers of the page, and those of the test: the last one is still waited for when the app is rolled back.
TIERS = ('["10s", "1m", "10m", "1h"]', '["1s", "40s", "10m", "1h"]')


class Walk:
    """A project in a folder, its worker processes, and the broker."""

    def __init__(self, folder, broker, management_url):
        self.folder, self.attempts_file = folder, folder / "attempts.txt"
        self.attempts_file.touch()
        self.environment = {
            **os.environ,
            "BROKER_URL": broker,
            "ATTEMPTS": str(self.attempts_file),
            "RMQ_DELAY_MANAGEMENT_URL": management_url,
        }
        self.connection = kombu.Connection(broker)
        self.api = Management(management_url, self.connection.virtual_host, "guest", "guest")
        self.sent: dict[int, int] = {}

    def close(self):
        self.api.close()
        self.connection.close()

    def deploy(self, *parts, name="proj"):
        """Write the version of the app that consists of these parts."""
        self.folder.joinpath(f"{name}.py").write_text("\n".join(parts))

    def python(self, code, app="proj"):
        return self.run([sys.executable, "-c", f"from {app} import *\n{code}"])

    def run(self, command, *codes, typed=""):
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, input=typed, capture_output=True, text=True, timeout=SECONDS
        )
        print(*command, done.stdout, done.stderr, sep="\n")
        assert done.returncode in (codes or (0,)), done.stdout + done.stderr
        return done.stdout

    def command(self, snippet, *codes, app="proj"):
        """Run the commands of a block, confirmed; the last one ends with one of the codes."""
        *before, last = snippet.code.replace("-A proj", f"-A {app}").splitlines()
        for line in before:
            self.run([sys.executable, "-m", *shlex.split(line)], 0, 2, typed="y\n")
        return self.run([sys.executable, "-m", *shlex.split(last)], *codes, typed="y\n")

    def send(self, fails=0, *, countdown=0, task="charge", app="proj"):
        """Call a task that fails so often."""
        number = len(self.sent)
        self.sent[number] = fails
        arguments = f"({number}, {fails})" if task == "charge" else f"({number},)"
        self.python(f"{task}.apply_async({arguments}, countdown={countdown} or None)", app)

    def attempts(self):
        return Counter(tuple(map(int, line.split())) for line in self.attempts_file.read_text().splitlines())

    def ready(self, *queues):
        return sum(count or 0 for count in ready_counts(self.connection, queues).values())

    def objects(self):
        """Return queues with their arguments, exchanges and policies of the vhost."""
        return {
            "queues": {name: dict(each.arguments) for name, each in self.api.queues().items()},
            "exchanges": sorted(self.api.exchanges()),
            "policies": self.api.policies(),
            "bindings": sorted(self.api.bindings()),
        }

    def worker(self, name, app="proj", *options):
        """Run a worker; its log is the value of the block."""
        return running_worker(self.folder, app, self.environment, "-n", name, "-c", "2", *options, name=name)


@pytest.fixture
def walk(managed, managed_vhost, tmp_path):
    found = Walk(tmp_path, managed_vhost, str(managed.management_url))
    yield found
    found.close()


def blocks(page, heading, language):
    return [each for each in section(page, heading) if each.language == language]


#: The blocks of the pages.
BEFORE, AFTER = blocks(PAGE, "1. Add the package to the app", "python")
(WORKER,) = blocks(PAGE, "1. Add the package to the app", "sh")
(CHECK,) = blocks(PAGE, "3. Check the plan and deploy", "sh")
(ADOPT,) = blocks(PAGE, "6. Adopt the queue", "sh")
DRY_RUN, UNINSTALL = blocks(WAY_BACK, "Roll back", "sh")
(ARGUMENTS,) = blocks(WAY_BACK, "Roll back", "python")
PLAN, DOCTOR = (replace(CHECK, code=line) for line in CHECK.code.splitlines())
STOCK, CONFIGURED = BEFORE.code, AFTER.code.replace(*TIERS)
CONSUMED = shlex.split(WORKER.code)[4:6]
#: What `doctor` reports until the queue is adopted.
NOT_ADOPTED = "payments: It exists without our dead-letter exchange"


def have_tasks_waiting(walk):
    """Let tasks fail, so that five wait when the worker of the package has stopped."""
    walk.send(fails=1, app="next")
    wait_for(lambda: all(walk.attempts()[number, 1] for number, fails in walk.sent.items() if fails), "the retries")
    for _ in range(3):
        walk.send(fails=2, app="next")
    for _ in range(2):
        walk.send(fails=1, countdown=40, app="next")
    wait_for(lambda: walk.ready("payments.retry.2.40s") == 3, "parked tasks")


def wait_for_all(walk):
    """Wait until each task has run as often as it has to, and check that none ran more often."""
    expected = {(number, attempt) for number, fails in walk.sent.items() for attempt in range(fails + 1)}
    wait_for(lambda: walk.attempts().keys() >= expected, "all tasks")
    wait_for(lambda: not walk.ready("celery", "payments"), "empty queues")
    assert walk.attempts() == Counter(expected)


@pytest.mark.brokers
def test_an_existing_queue_is_migrated_and_rolled_back_to_a_broker_without_a_trace(walk):
    assert AFTER.code != CONFIGURED
    walk.deploy(STOCK, TASKS % "")
    with walk.worker("stock", "proj", *CONSUMED):
        walk.send()
        walk.send(task="ping")
        wait_for(lambda: len(walk.attempts()) == 2, "the first tasks")
        walk.run([sys.executable, "-m", "celery", "-A", "proj", "inspect", "ping"])  # declares Celery's own exchanges
    before = walk.objects()
    assert {"celery", "payments"} <= before["queues"].keys()
    for _ in range(3):
        walk.send(fails=1)

    walk.deploy(CONFIGURED, TASKS % "", name="next")
    walk.command(PLAN, 2, app="next")
    assert "missing" in walk.command(DOCTOR, 1, app="next")
    with walk.worker("old", "proj", *CONSUMED), walk.worker("both", "next", *CONSUMED) as log:
        walk.send(fails=1, app="next")
        wait_for_all(walk)
    assert "The queue 'payments' exists with other arguments" in log.read_text()
    walk.command(PLAN, app="next")
    assert NOT_ADOPTED in walk.command(DOCTOR, 1, app="next")

    walk.deploy(CONFIGURED, RETRYABLE_TASKS, name="next")
    with walk.worker("new", "next", *CONSUMED):
        walk.command(ADOPT, app="next")
        assert NOT_ADOPTED not in walk.command(DOCTOR, 0, 1, app="next")
        assert [each.name for each in walk.api.policies()] == ["rmq_delay.payments"]
        have_tasks_waiting(walk)
    walk.send(fails=1, app="next")

    assert "would delete" in walk.command(DRY_RUN, 2, app="next")
    walk.send(fails=1)
    assert re.search(r"put [1-5] messages into payments", walk.command(UNINSTALL, app="next"))
    assert walk.objects() == before
    with walk.worker("back", "proj", *CONSUMED):
        walk.send(fails=1)
        walk.send(task="ping")
        wait_for_all(walk)
    assert walk.objects() == before


@pytest.mark.brokers
@pytest.mark.slow
def test_declared_queues_are_rolled_back_with_their_arguments_and_deleted_at_the_end(walk):
    walk.deploy(CONFIGURED, RETRYABLE_TASKS, name="next")
    with walk.worker("new", "next", *CONSUMED):
        have_tasks_waiting(walk)

    walk.deploy(STOCK, ARGUMENTS.code, TASKS % "")
    walk.send(fails=1)
    assert re.search(r"put [1-5] messages into payments", walk.command(UNINSTALL, 1, app="next"))
    assert {*walk.objects()["queues"]} == {"celery", "payments", "rmq_delay.exhausted"}
    with walk.worker("back"):  # consumes all queues that the app names
        walk.send(task="ping")
        wait_for_all(walk)

    (finish,) = section(ROOT / "docs/migrate/uninstall.md", "Queues that this package declared")
    walk.command(finish, app="next")
    assert not any("rmq_delay" in name for kind in walk.objects().values() for name in map(str, kind))
    walk.deploy(STOCK, TASKS % "")
    with walk.worker("last", "proj", *CONSUMED):
        walk.send()
        wait_for_all(walk)
    plain = ({}, {"x-queue-type": "classic"})  # RabbitMQ 4.0 and later report the default type, too
    found = walk.objects()["queues"]
    assert {name: arguments in plain for name, arguments in found.items()} == {"celery": True, "payments": True}
