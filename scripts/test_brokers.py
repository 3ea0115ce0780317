"""Run the broker tests on each RabbitMQ version that `make test` does not use, and print each result in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.brokers import trees  # noqa: E402

WHOLE = "--whole"
#: Tests that may differ between brokers; and all tests with a broker.
SELECTION = {False: "brokers and not slow", True: "brokers or integration"}


def log(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(version: str, arguments: list[str], *, whole: bool) -> tuple[int, str]:
    """Return pytest's exit code and its closing line."""
    # A server set in the environment would be tested three times; CI makes a missing server a failure.
    environment = {key: value for key, value in os.environ.items() if key != "BROKER_URL"} | {"CI": "true"}
    selection = ["-m", SELECTION[whole], "--rabbitmq", version]
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "pytest", *selection, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        closing = "no output"
        for line in process.stdout or ():
            log(line.rstrip("\n"))
            closing = line.strip() or closing
    return process.returncode, closing


def main(arguments: list[str]) -> int:
    """Build missing trees, test on each version except the installed one, return 1 if any failed.

    ``--whole`` adds the slow tests; other arguments are passed to pytest.
    """
    whole = WHOLE in arguments
    arguments = [each for each in arguments if each != WHOLE]
    if code := trees.main(["build"]):
        return code
    results = {}
    for version in trees.SUITES:
        if trees.system_has(version):
            log(f"RabbitMQ {version} is installed: 'make test' uses it")
            continue
        log(f"\n##### RabbitMQ {version} #####")
        results[version] = run(version, arguments, whole=whole)
    log("")
    for version, (code, closing) in results.items():
        log(f"RabbitMQ {version:>4} {'passed' if code == 0 else f'FAILED (exit {code})'}: {closing.strip('= ')}")
    return 1 if any(code for code, _ in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
