"""Measure how long the admin's pages take with a million exhausted tasks.

    python -m benchmarks admin_pages [--sqlite] [--exhausted 1000000] [--parked 100000] [--rounds 40] [--explain]

Starts a private PostgreSQL or creates a SQLite file, fills it (`benchmarks.admin_rows`), and requests each page as a
staff user: middleware, permissions, queries and template, no network. Prints queries, median and 95th percentile in ms,
the CPU of Python and PostgreSQL, and fails if a page takes more than its bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.servers.postgres import PrivatePostgres, django_database

#: A search for words needs four more than a list.
MAX_QUERIES = 16
LIST_MS, SEARCH_MS = 300.0, 50.0
_BASE = "/admin/rmq_delay"


@dataclass(frozen=True)
class Page:
    """A page and its bound in ms."""

    name: str
    address: str
    bound: float = LIST_MS


@dataclass(frozen=True)
class Timing:
    """Measurements of a page: ms, queries, and average CPU of Python and the database in ms."""

    page: Page
    median: float
    p95: float
    queries: int
    cpu: float

    @property
    def is_good(self) -> bool:
        """Whether it is within its bounds."""
        return self.p95 <= self.page.bound and self.queries <= MAX_QUERIES


def pages() -> Iterator[Page]:
    """Yield the lists, with single and combined filters, searches, and the last pages."""
    from benchmarks.admin_rows import RARE_ERROR, RARE_QUEUE, RARE_TASK, RARE_WORKER, WORKERS
    from celery_rmq_delay.contrib.django.models import Operation, TaskRecord

    exhausted = TaskRecord.objects.filter(state="EXHAUSTED").order_by("-pk")[1_000]
    parked = TaskRecord.objects.filter(state="PARKED").order_by("-pk")[1_000]
    for name in ("exhaustedtask", "parkedtask", "taskrecord"):
        yield Page(f"{name}: all", f"{name}/")
        for values in (
            ("queue", "queue0", RARE_QUEUE),
            ("task", "shop.tasks.task0", RARE_TASK),
            ("error", "shop.errors.Error0", RARE_ERROR),
            ("worker", WORKERS[0], RARE_WORKER),
            ("attempts", "2", "10"),
            ("requeued", "1", "0"),
            ("window", "1h", "30d"),
            ("group", str(exhausted.failure_group_id), "1"),
        ):
            for value in values[1:]:
                yield Page(f"{name}: {values[0]}={value}", f"{name}/?{values[0]}={value}")
        both = f"queue={RARE_QUEUE}&task=shop.tasks.task0"
        yield Page(f"{name}: rare queue, frequent task", f"{name}/?{both}")
        yield Page(
            f"{name}: queue, task, error", f"{name}/?queue=queue1&task=shop.tasks.task1&error=shop.errors.Error1"
        )
        yield Page(f"{name}: last page", f"{name}/?p=200")
        yield Page(f"{name}: search for a name", f"{name}/?q=shop.tasks.task1")
        yield Page(f"{name}: search for every error", f"{name}/?q=shop")
        found = parked if name == "parkedtask" else exhausted
        yield Page(f"{name}: search for an id", f"{name}/?q={found.task_id}", SEARCH_MS)
        yield Page(f"{name}: search for no id", f"{name}/?q={'0' * 32}", SEARCH_MS)
        yield from searches(name, found.args_preview.strip("[]"))
    yield Page("parkedtask: overdue", "parkedtask/?overdue=1")
    yield Page("exhaustedtask: other states", "exhaustedtask/?state=DISCARDED")
    yield Page("failuregroup: open", "failuregroup/")
    yield Page("failuregroup: all", "failuregroup/?open=any")
    yield Page("failuregroup: one", f"failuregroup/{exhausted.failure_group_id}/change/")
    yield Page("exhaustedtask: one", f"exhaustedtask/{exhausted.pk}/change/")
    operation = Operation.objects.get()
    yield Page("exhaustedtask: of an operation", f"exhaustedtask/?operation={operation.pk}")
    yield Page("exhaustedtask: failed in an operation", f"exhaustedtask/?operation={operation.pk}&outcome=FAILED")
    yield Page("operation: all", "operation/")
    yield Page("operation: one", f"operation/{operation.pk}/change/")


def searches(name: str, number: str) -> Iterator[Page]:
    """Yield searches of a list for words of messages and arguments; ``number`` is an argument of one of its tasks."""
    from benchmarks.admin_rows import COMMON_WORD, FREQUENT_WORD, QUEUES, RARE_QUEUE, RARE_WORD

    for what, query in (
        ("argument", number),
        ("beginning of arguments", f"{number[:3]}*"),
        ("rare word", RARE_WORD),
        ("frequent word", FREQUENT_WORD),
        ("word of every task", COMMON_WORD),
        ("beginning of a word of every task", f"{COMMON_WORD[:-2]}*"),
        ("two frequent words", f"{COMMON_WORD}+{FREQUENT_WORD}"),
        ("frequent word and argument", f"{COMMON_WORD}+{number}"),
        ("no word", "nothing"),
        ("frequent word, frequent queue", f"{FREQUENT_WORD}&queue={QUEUES[0]}"),
        ("frequent word, rare queue", f"{FREQUENT_WORD}&queue={RARE_QUEUE}"),
        ("rare word, frequent queue", f"{RARE_WORD}&queue={QUEUES[0]}"),
    ):
        yield Page(f"{name}: search, {what}", f"{name}/?q={query}")


def measure(page: Page, rounds: int) -> Timing:
    """Request a page ``rounds`` times."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    browser = _browser()
    address = f"{_BASE}/{page.address}"
    with CaptureQueriesContext(connection) as queries:
        answer = browser.get(address)
    count = sum(query["sql"].startswith("SELECT") for query in queries)
    if answer.status_code != 200:
        raise SystemExit(f"{address} answers {answer.status_code}")
    is_postgres = connection.vendor == "postgresql"
    backend = psutil.Process(connection.connection.info.backend_pid) if is_postgres else None
    took, cpu = [], _cpu(backend)
    for _ in range(rounds):
        begun = time.perf_counter()
        browser.get(address)
        took.append((time.perf_counter() - begun) * 1000)
    return Timing(
        page, statistics.median(took), statistics.quantiles(took, n=20)[-1], count, (_cpu(backend) - cpu) / rounds
    )


def _cpu(backend: psutil.Process | None) -> float:
    """Return the CPU that this process and one of the database have used, in ms."""
    used = backend.cpu_times() if backend else None
    return 1000 * (time.process_time() + (used.user + used.system if used else 0))


def explain(page: Page) -> None:
    """Print the plans of a page's slow queries."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        _browser().get(f"{_BASE}/{page.address}")
    for query in queries:
        if float(query["time"]) > 0.02:
            with connection.cursor() as cursor:
                command = "EXPLAIN (ANALYZE, BUFFERS)" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
                cursor.execute(f"{command} {query['sql'].replace('%', '%%')}", [])
                print(f"\n{page.name}: {query['time']} s\n{query['sql'][:400]}")
                print("\n".join(str(row[-1]) for row in cursor.fetchall()))


def _browser():  # type: ignore[no-untyped-def]
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    user, made = User.objects.get_or_create(username="bob", defaults={"is_staff": True})
    if made:
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="rmq_delay"))
    browser = Client(headers={"host": "127.0.0.1"})
    browser.force_login(user)
    return browser


@contextmanager
def _database(is_sqlite: bool) -> Iterator[None]:
    """Set Django up with a new database and its tables."""
    import django
    from django.core.management import call_command
    from django.db import connection

    with ExitStack() as stack:
        if is_sqlite:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            os.environ["SQLITE_PATH"] = str(Path(folder) / "admin_pages.sqlite3")
        else:
            postgres = stack.enter_context(PrivatePostgres())
            found = django_database(postgres.create_database("admin_pages"))
            names = {"HOST": "HOST", "PORT": "PORT", "DB": "NAME", "USER": "USER", "PASSWORD": "PASSWORD"}
            os.environ.update({f"POSTGRES_{name}": str(found[key]) for name, key in names.items()})
        os.environ |= {"DJANGO_SETTINGS_MODULE": "shop.settings", "DEBUG": "0", "BROKER_URL": "amqp://127.0.0.1:1//"}
        sys.path.insert(0, str(Path(__file__).parents[1] / "example_django_project"))
        django.setup()
        call_command("migrate", verbosity=0)
        stack.callback(connection.close)
        yield


def main() -> None:
    """Fill the database, measure, print; exit code 1 if a page takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqlite", action="store_true", help="measure SQLite instead of PostgreSQL")
    parser.add_argument("--exhausted", type=int, default=1_000_000)
    parser.add_argument("--parked", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="", help="pages whose name contains this")
    parser.add_argument("--explain", action="store_true", help="print the plans of slow queries")
    options = parser.parse_args()
    with _database(options.sqlite):
        from benchmarks.admin_rows import fill

        begun = time.perf_counter()
        fill(options.exhausted, options.parked)
        print(f"{options.exhausted:,} exhausted and {options.parked:,} parked in {time.perf_counter() - begun:.0f} s\n")
        print(f"{'page':58} {'queries':>7} {'median ms':>10} {'p95 ms':>8} {'CPU ms':>7} {'bound':>6}")
        failed = 0
        for page in pages():
            if options.only not in page.name:
                continue
            timing = measure(page, options.rounds)
            failed += not timing.is_good
            mark = "" if timing.is_good else "  !"
            print(
                f"{page.name:58} {timing.queries:7} {timing.median:10.1f} {timing.p95:8.1f} {timing.cpu:7.1f} "
                f"{page.bound:6.0f}{mark}",
                flush=True,
            )
            if options.explain and not timing.is_good:
                explain(page)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
