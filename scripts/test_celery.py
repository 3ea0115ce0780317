"""Run Celery's integration suite with plain tasks and with retryable ones, and compare the results of each test."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from celery_rmq_delay.testing import PrivateBroker
from tests.support.servers.redis import PrivateRedis

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "celery"
#: Seconds for one test; Celery's limit is 300.
TIMEOUT = 120
#: The plugin that makes every task of the suite a `RetryableTask`.
RETRYABLE = "tests.support.celery_suite"
#: Tests of behaviour that this package changes on purpose, with the change.
BY_DESIGN = {
    "test_inspect.test_Inspect::test_active": "a retryable task is acked when it is done, and not before",
    "test_inspect.test_Inspect::test_query_task": "the same",
    "test_inspect.test_Inspect::test_active_queues": "an origin queue has a dead-letter exchange among its arguments",
    "test_inspect.test_Inspect::test_scheduled": "RabbitMQ holds a task with an eta, and no worker does",
    "test_worker::test_concurrency_auto_sizes_prefork_pool": "a second worker, without this package, declares "
    "the origin queue of the first one without that exchange",
}
VARIANTS = {"plain": "", "retryable": f"-p {RETRYABLE}"}


def log_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def suite() -> Path:
    """Return the folder with the suite of the installed Celery version, downloaded if missing: tests without code."""
    number = version("celery")
    folder = CACHE / f"celery-{number}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "celery", f"celery=={number}"]
    subprocess.run([*fetch, "-d", str(CACHE)], check=True)  # noqa: S603
    with tarfile.open(CACHE / f"celery-{number}.tar.gz") as archive:
        wanted = [each for each in archive.getmembers() if each.name.split("/")[1:2] in (["t"], ["pyproject.toml"])]
        archive.extractall(CACHE / "unpacked", members=wanted, filter="data")
    (CACHE / "unpacked" / folder.name).rename(folder)
    return folder


def run(name: str, plugin: str, arguments: list[str]) -> dict[str, str]:
    """Run the suite on private servers; return the outcome of each test."""
    report, log = CACHE / f"{name}.xml", CACHE / f"{name}.log"
    report.unlink(missing_ok=True)
    log_line(f"{name} tasks: the output goes to {log.relative_to(ROOT)}")
    with PrivateBroker() as broker, PrivateRedis() as redis, log.open("w") as output:
        environment = os.environ | {
            "TEST_BROKER": broker.url,
            "CELERY_BROKER_URL": broker.url,  # some tests name none
            "TEST_BACKEND": redis.url,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(redis.port),
            "PYTHONPATH": str(ROOT),
        }
        # test_backend is of Azure.
        options = [
            "--ignore=t/integration/test_backend.py",
            *plugin.split(),
            f"--junitxml={report}",
            f"--timeout={TIMEOUT}",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            "-v",
        ]
        subprocess.run(  # noqa: S603
            [sys.executable, "-m", "pytest", "t/integration", *options, *arguments],
            cwd=suite(),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if not report.exists():
        raise SystemExit(f"The run with {name} tasks wrote no report. The end of its output:\n{tail(log)}")
    return outcomes(report)


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


def outcomes(report: Path) -> dict[str, str]:
    """Return the outcome of each test of a JUnit report: passed, failed, error or skipped."""
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own run wrote it
        kinds = {"failure": "failed", "error": "error", "skipped": "skipped"}
        outcome = next((kinds[child.tag] for child in case if child.tag in kinds), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main() -> int:
    """Return 1 if a test that passes with plain tasks fails with retryable ones, not by design, or if none passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arguments", nargs="*", help="options for pytest, after --")
    arguments = parser.parse_args().arguments
    suite()
    with ThreadPoolExecutor() as side_by_side:  # each mostly waits
        runs = [side_by_side.submit(run, name, plugin, arguments) for name, plugin in VARIANTS.items()]
        plain, retryable = (each.result() for each in runs)
    passed = {name for name, outcome in plain.items() if outcome == "passed"}
    differ = sorted(name for name in passed if retryable.get(name) != "passed")
    reasons = {name: why for name in differ for known, why in BY_DESIGN.items() if name.endswith(f".{known}")}
    worse = [name for name in differ if name not in reasons]
    log_line(f"\nCelery {version('celery')}: {len(plain)} tests")
    for name, found in (("plain", plain), ("retryable", retryable)):
        counts = {outcome: list(found.values()).count(outcome) for outcome in sorted(set(found.values()))}
        log_line(f"  {name}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    for name, why in reasons.items():
        log_line(f"  differs by design: {name}: {why}")
    for name in worse:
        log_line(f"  passes with plain tasks only: {name} ({retryable.get(name, 'not run')})")
    log_line(f"{len(worse)} tests pass with plain tasks only")
    return 1 if worse or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
