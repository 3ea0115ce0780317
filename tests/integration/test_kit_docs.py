"""The examples of the how-to page about tests of retries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.snippets import snippets, write

PAGE = ROOT / "docs/how-to/test-your-retries.md"
FILES = [snippet.title for snippet in snippets(PAGE) if snippet.language == "python"]
WITH_BROKER = {"test_with_broker.py": 2, "test_with_process.py": 1}
WITHOUT = {"test_charge.py": 3, "test_outage.py": 3, "test_with_unittest.py": 1}


def run(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "BROKER_URL"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_of_the_page_is_a_file_that_runs() -> None:
    assert sorted(FILES) == sorted(["shop.py", *WITHOUT, *WITH_BROKER])


def test_examples_that_need_no_broker_pass_without_one(tmp_path: Path) -> None:
    write(PAGE, tmp_path, *FILES)
    output = run(tmp_path, "--rabbitmq", "/no/such/server", *WITHOUT)
    assert f"{sum(WITHOUT.values())} passed" in output


def test_examples_that_need_a_broker_pass_on_one(rmq_vhost: str, tmp_path: Path) -> None:
    write(PAGE, tmp_path, *FILES)
    output = run(tmp_path, "--broker-url", rmq_vhost, *WITH_BROKER)
    assert f"{sum(WITH_BROKER.values())} passed" in output
