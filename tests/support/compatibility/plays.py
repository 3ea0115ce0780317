"""The same calls with Celery's own retries and with those of this package, in processes that import a product."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_rmq_delay.testing.servers.process import KeptProcess
from tests.support import ROOT
from tests.support.snippets import write
from tests.support.waiting import BUSY, wait_for

PAGE = ROOT / "docs/reference/compatibility.md"
SHOP = "tests.support.compatibility.shop"
KINDS = ("stock", "retryable")
#: Seconds between two attempts; `shop` has the same.
WAIT = 0.2


@dataclass(frozen=True)
class Attempt:
    task: str
    status: str
    trace: Any
    parent: Any


def has_last(attempts: Iterable[Attempt]) -> bool:
    return any(each.task == "last" for each in attempts)


def parents(attempts: Iterable[Attempt], task: str) -> int:
    """How many different parents the attempts of a task have."""
    return len({each.parent for each in attempts if each.task == task})


def assert_same(stock: list[Attempt], ours: list[Attempt], fails: list[str]) -> None:
    """Check that attempts have the status and the trace of stock Celery's; ``fails``: the statuses of that task."""
    by_task = [sorted(found, key=lambda each: each.task) for found in (stock, ours)]  # those of a task in their order
    first, second = ([(each.task, each.status) for each in found] for found in by_task)
    assert second == first
    assert [status for task, status in second if task == "fails"] == fails
    for attempts in (stock, ours):
        _assert_one_trace_for_each_call(attempts)


def _assert_one_trace_for_each_call(attempts: list[Attempt]) -> None:
    """Fail unless all attempts of a call are in the trace of its publisher, and a called task in that of its caller."""
    by_task = {each.task: {other.trace for other in attempts if other.task == each.task} for each in attempts}
    assert {task: len(traces) for task, traces in by_task.items() if task != "succeeds"} == dict.fromkeys(
        by_task.keys() - {"succeeds"}, 1
    )
    assert len(by_task["succeeds"]) == 2
    assert by_task["calls"] < by_task["succeeds"]


@dataclass
class Play:
    """One run of all calls: a folder with what the product has reported, and the results by the task's name."""

    kind: str
    folder: Path

    def read(self, name: str) -> str:
        """The text of a file in the folder; empty if there is none."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def log(self) -> str:
        return self.read("worker.log")

    @property
    def results(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads(self.read("results.json"))
        return found

    def id(self, name: str) -> str:
        return self.results[name]["id"]

    def lines(self, name: str = "reported.jsonl") -> list[Any]:
        """The JSON lines of a file in the folder, complete ones only."""
        return [json.loads(line) for line in self.read(name).splitlines(keepends=True) if line.endswith("\n")]


@dataclass(frozen=True)
class Product:
    """How processes use a product: the file of the documentation that they import, and what only the test adds."""

    #: The file of `PAGE` that a project imports first; empty if the product needs none. Others of `PAGE` beside it.
    shown: str = ""
    files: tuple[str, ...] = ()
    #: Variables; ``{folder}`` is the folder of the files.
    environ: tuple[tuple[str, str], ...] = ()
    #: The source of a module that is imported before it, and after it: where reports go. The second may have a context
    #: manager ``publishing(name)``, in which the publisher makes a call.
    before: str = ""
    after: str = ""


def environ_of(product: Product, kind: str, folder: Path, broker: str, backend: str) -> dict[str, str]:
    """Return the environment of a process of the app; its modules are written into ``folder``."""
    imports = []
    for name, source in (("before_product", product.before), ("after_product", product.after)):
        (folder / f"{name}.py").write_text(source)
    if product.before:
        imports.append("before_product")
    if product.shown:
        write(PAGE, folder, product.shown, *product.files)
        imports.append(product.shown.removesuffix(".py"))
    if product.after:
        imports.append("after_product")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SHOP_KIND": kind,
        "SHOP_FOLDER": str(folder),
        "SHOP_IMPORTS": " ".join(imports),
        "SHOP_BROKER": broker,
        "SHOP_BACKEND": backend,
        "SHOP_QUEUE_TYPE": "classic",
        **{name: value.replace("{folder}", str(folder)) for name, value in product.environ},
    }


def start_worker(environ: dict[str, str], folder: Path, *options: str, app: str = SHOP) -> KeptProcess:
    """Start a worker with one child process: what it reports is in the order of its attempts."""
    arguments = ("worker", "--loglevel=INFO", "--concurrency=1", "--without-mingle", "--without-gossip")
    return start(environ, folder, "worker", "celery", "-A", app, *arguments, "--queues=shop", *options)


def start(environ: dict[str, str], folder: Path, name: str, module: str, *arguments: str) -> KeptProcess:
    """Start ``python -m module``, which ends with the tests; its output is in ``name`` .log."""
    command = [sys.executable, "-m", module, *arguments]
    process = KeptProcess(command, env=environ, output=folder / f"{name}.log")
    process.start()
    return process


def play(
    product: Product, folder: Path, brokers: Iterable[str], backend: str, reported: Callable[[Play], bool]
) -> dict[str, Play]:
    """Make all calls with each kind of task, stop the workers, and wait until the product has ``reported`` the calls.

    ``reported`` gets the run so far; it is true once the end of the task ``last`` is reported.
    """
    with ExitStack() as stack:
        workers, publishers, plays = {}, {}, {}
        for kind, broker in zip(KINDS, brokers, strict=True):
            inside = folder / kind
            inside.mkdir()
            environ = environ_of(product, kind, inside, broker, backend)
            workers[kind] = start_worker(environ, inside)
            stack.callback(workers[kind].close)
            publishers[kind] = start(environ, inside, "publisher", SHOP)
            stack.callback(publishers[kind].close)
        for kind in KINDS:
            now = Play(kind, folder / kind)
            try:
                wait_for(lambda kind=kind: not publishers[kind].is_running(), f"the publisher of {kind}", BUSY)
            except AssertionError:
                raise AssertionError(f"The tasks of {kind} have not ended:\n{now.log[-6_000:]}") from None
            assert publishers[kind].exit_code == 0, f"{now.read('publisher.log')}\n{now.log[-6_000:]}"
            plays[kind] = now
        for kind in KINDS:
            assert workers[kind].end("term", timeout=BUSY), plays[kind].log  # products send what they hold
            wait_for(lambda kind=kind: reported(plays[kind]), f"all reports of {kind}", BUSY)
    return plays
