"""``python -m fuzz``: fuzz every target; failing inputs are printed and stored. Exit code 1 if a target fails."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "found"
#: Bytes of one input at most.
LONGEST = 4_096


def run(name: str, seconds: int) -> None:
    """Fuzz one target; the process ends with it."""
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
    """Run the chosen targets, each in its own process."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--target", action="append", help="only this target; may be repeated")
    parser.add_argument("--seconds", type=int, default=60, help="seconds per target (60)")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        run(given.here, given.seconds)  # imports the targets itself, to instrument their branches
    from celery_rmq_delay.stopping import exit_at_once, handling
    from fuzz.targets import TARGETS

    if unknown := set(given.target or ()) - TARGETS.keys():
        parser.error(f"unknown target {', '.join(sorted(unknown))}. Use {', '.join(sorted(TARGETS))}.")
    failed = []
    for name in given.target or sorted(TARGETS):
        command = [sys.executable, "-m", "fuzz", "--here", name, "--seconds", str(given.seconds)]
        with handling(exit_at_once):
            code = subprocess.run(command, check=False).returncode
        print(f"{name}: {'failed, see ' + str(FOLDER) if code else 'no failure'} ({given.seconds} s)", flush=True)
        failed += [name] if code else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
