"""Run the broker tests on every RabbitMQ version, one after the other, and say in one line each how they ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from celery_rmq_delay.testing import trees

ROOT = Path(__file__).resolve().parents[1]
OTHERS, WHOLE = "--others", "--whole"
SELECTION = {
    # What may differ between brokers; of the long tests, those on a broker alone that say so.
    False: "integration and (all_brokers or not (heavy or one_broker)) or acceptance and all_brokers and not heavy",
    True: "integration or all_brokers",
}
PARALLEL = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(version: str, arguments: list[str], *, whole: bool) -> tuple[int, str]:
    """Return pytest's exit code and its closing line."""
    # A server named from outside would be tested three times over; CI makes a missing server a failure.
    environment = {key: value for key, value in os.environ.items() if key != "BROKER_URL"} | {"CI": "true"}
    folders = [name for name in ("tests/integration", "tests/acceptance") if (ROOT / name).is_dir()]
    selection = [*PARALLEL, "-m", SELECTION[whole], "--rabbitmq", version, *folders]
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "pytest", *selection, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        closing = "nothing was printed"
        for line in process.stdout or ():
            say(line.rstrip("\n"))
            closing = line.strip() or closing
    return process.returncode, closing


def main(arguments: list[str]) -> int:
    """Build the trees that are missing, test on each version, return 1 if any failed.

    ``--others`` leaves out the version that is installed: `make test` tests it, and more. ``--whole`` adds the tests
    that take long; what else is given goes to pytest.
    """
    others, whole = OTHERS in arguments, WHOLE in arguments
    arguments = [each for each in arguments if each not in {OTHERS, WHOLE}]
    if code := trees.main(["build"]):
        return code
    results = {}
    for version in trees.SUITES:
        if others and trees.system_has(version):
            say(f"RabbitMQ {version} is installed: left out")
            continue
        say(f"\n##### RabbitMQ {version} #####")
        results[version] = run(version, arguments, whole=whole)
    say("")
    for version, (code, closing) in results.items():
        say(f"RabbitMQ {version:>4} {'passed' if code == 0 else f'FAILED (exit {code})'}: {closing.strip('= ')}")
    return 1 if any(code for code, _ in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
