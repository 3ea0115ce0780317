"""``python -m chaos``: run a system under load and faults, and check the result. ``--help`` shows the options."""

from __future__ import annotations

import argparse
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from celery_rmq_delay.durations import parse_ms
from celery_rmq_delay.stopping import exit_at_once, handling
from celery_rmq_delay.testing import PrivateBroker
from chaos.checker import Verdict
from chaos.faults import FAULTS
from chaos.report import Progress, as_json, print_verdict
from chaos.run import judge, run
from chaos.schedule import ScheduleError, schedule
from chaos.strikes import Fault
from chaos.world import Load, World
from tests.support.brokers.trees import choose


def _seconds(text: str) -> float:
    return parse_ms(text, "a time") / 1000


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of all random choices; default: a new one")
    parser.add_argument("--tasks", type=int, default=2000, help="number of tasks (default: %(default)s)")
    parser.add_argument(
        "--duration", type=_seconds, default=120.0, help="time in which tasks are sent and faults strike (default: 2m)"
    )
    parser.add_argument("--strikes-each", type=int, default=1, help="strikes of each fault (default: %(default)s)")
    parser.add_argument("--unit", type=_seconds, default=1.0, help="the shortest tier of the ladders (default: 1s)")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default: %(default)s)")
    parser.add_argument("--rabbitmq", default="system", help="system, 3.10, 4.0, 4.3, or a path (default: %(default)s)")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="broker nodes (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="FAULT", help="only this fault; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdict to this file")
    parser.add_argument("--keep", action="store_true", help="also keep the folder of a run without findings")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="check the run of this folder again")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options, console = _options(arguments), Console()
    if options.check:
        verdict = judge(options.check)
        print_verdict(console, verdict)
        return 0 if verdict.good else 1
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = "python -m chaos " + shlex.join(given if options.seed is not None else ["--seed", str(seed), *given])
    console.print(f"seed {seed}: {command}", soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    begun = time.monotonic()
    try:
        verdict, struck = _run(options, seed, folder, console)
    except ScheduleError as error:
        console.print(str(error), style="red")
        shutil.rmtree(folder)
        return 2
    except BaseException:
        console.print(f"The run was interrupted. Its seed is {seed}, its folder {folder}.", style="red", soft_wrap=True)
        raise
    print_verdict(console, verdict, struck)
    if options.json:
        options.json.write_text(as_json(verdict, struck, seed, command, time.monotonic() - begun))
    if verdict.good and not options.keep:
        shutil.rmtree(folder)
        return 0
    console.print(f"Its folder is {folder}; to check it again: python -m chaos --check {folder}", soft_wrap=True)
    if not verdict.good:
        console.print(f"To run it again: {command}", style="red", soft_wrap=True)
    return 0 if verdict.good else 1


def _run(options: argparse.Namespace, seed: int, folder: Path, console: Console) -> tuple[Verdict, dict[str, int]]:
    load = Load(seed, options.tasks, options.duration, options.unit, options.workers)
    make, known = _arena(options, load)
    if unknown := set(options.only or ()) - {fault.name for fault in known}:
        raise SystemExit(
            f"There is no fault {', '.join(sorted(unknown))}. Use one of: {', '.join(f.name for f in known)}."
        )
    faults = tuple(fault for fault in known if not options.only or fault.name in options.only)
    strikes = schedule(seed, load.duration, faults, options.strikes_each)
    with make(folder) as world:
        progress = Progress(world, faults, strikes)
        with Live(progress.table(), console=console, auto_refresh=False, transient=True) as live:
            on_progress = progress.updater(live) if console.is_terminal else lambda _: None
            verdict, striker = run(world, faults, strikes, on_progress)
    return verdict, {fault.name: striker.done[fault.name] for fault in faults}


def _arena(options: argparse.Namespace, load: Load) -> tuple[Callable[[Path], World], tuple[Fault, ...]]:
    """Return a function that creates the world, and the faults for it."""
    installation = choose(options.rabbitmq)
    if options.nodes == 1:
        return (lambda folder: World(folder, load, PrivateBroker(installation.server, installation.root))), FAULTS
    from chaos import cluster, cluster_faults

    return (
        lambda folder: cluster.cluster_world(folder, load, installation),
        cluster_faults.FAULTS_OF_CLUSTERS,
    )


if __name__ == "__main__":
    with handling(exit_at_once):
        sys.exit(main())
