"""``python -m fuzz``: every target for a while; what makes one fail is printed and kept. Exit code 1 when one fails."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "found"
#: Bytes of one input at most.
LONGEST = 4_096


def run(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["celery_rmq_delay", "amqp"]):
        from fuzz.targets import TARGETS, prepare

        prepare()
    corpus = FOLDER / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=10", f"-artifact_prefix={FOLDER}/{name}-"]
    atheris.Setup([sys.argv[0], *limits, "-verbosity=0", "-print_final_stats=1", str(corpus)], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    """Run the chosen targets, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--target", action="append", help="this one only; several times")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        run(given.here, given.seconds)  # imports the targets by itself, to see which of their branches are taken
    from celery_rmq_delay.stopping import exit_at_once, handling
    from fuzz.targets import TARGETS

    if unknown := set(given.target or ()) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(sorted(TARGETS))}")
    failed = []
    for name in given.target or sorted(TARGETS):
        command = [sys.executable, "-m", "fuzz", "--here", name, "--seconds", str(given.seconds)]
        with handling(exit_at_once):
            code = subprocess.run(command, check=False).returncode
        print(f"{name}: {'failed, see ' + str(FOLDER) if code else 'nothing found'} ({given.seconds} s)", flush=True)
        failed += [name] if code else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
