"""``python -m example_django_project.demo``: the shop under outages, live.

Starts a private RabbitMQ and Redis (BROKER_URL and REDIS_URL name others), the shop's partners with their outages, a
worker, a collector and a web server, sends some hundred orders and shows where each one is. With ONCE=1 it ends when
every task is accounted for: exit code 0, or 1 if one is missing. Otherwise orders keep coming until Ctrl-C, and you can
inspect and manage the tasks in the admin.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from celery_rmq_delay.testing import PrivateServerError
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .stack import PROJECT, DemoError, Stack, ending_on_signals

if TYPE_CHECKING:
    from .watch import Collected, Seen

    Show = Callable[[Seen], None]

POLL_EVERY = 0.5
LINE_EVERY = 2.0
#: Seconds without any message in a queue and without a settled task after which missing tasks count as lost.
QUIET = 8.0
#: Seconds that the collector has to process the rest when all tasks are settled.
CATCH_UP = 15.0


class Demo:
    """One run."""

    def __init__(self, console: Console, stack: Stack, options: argparse.Namespace, *, once: bool) -> None:
        from shop.celery import app

        from . import screen
        from .traffic import Traffic
        from .watch import Watch, collected, insights

        self._collected, self._insights = collected, insights
        self.screen, self.history, self._last_line = screen, screen.History(), -LINE_EVERY
        self.console, self.stack, self.options, self.once = console, stack, options, once
        self.partners = (stack.gateway, stack.mail, stack.feeds)
        self.watch = Watch(app, stack.gateway, stack.mail)
        self.traffic = Traffic(
            run=secrets.token_hex(2),
            orders=options.orders,
            seed=options.seed,
            broker_url=stack.broker_url,
            endless=not once,
        )

    def run(self) -> bool:
        """Send the tasks, show their state and a summary; return whether everything is accounted for."""
        self.stack.start_outages()
        self.started = time.monotonic()
        self.traffic.start()
        try:
            with self._screen() as show:
                seen = self._until_settled(show)
            collected = self._caught_up(seen)
            self._sum_up(seen, collected)
            holds = seen.balance.holds and collected.agrees_with(seen.balance)
            if holds:
                self.stack.analyse()
                self._print(self.screen.insights(self._insights(), self.stack.web_url))
            if not self.once:
                show_addresses(self.console, self.stack)
                show_commands(self.console, self.stack)
                self._stay()
        finally:
            self.traffic.stop()
            self.watch.close()
        return holds

    def _caught_up(self, seen: Seen) -> Collected:
        """Return the contents of the admin's tables as soon as the collector has caught up."""
        deadline = time.monotonic() + CATCH_UP
        while not (collected := self._collected()).agrees_with(seen.balance) and time.monotonic() < deadline:
            time.sleep(POLL_EVERY)
        return collected

    def _until_settled(self, show: Show) -> Seen:
        before, moved = -1, self._seconds
        while True:
            seen = self._observe(show)
            if seen.waiting or seen.balance.settled != before:
                before, moved = seen.balance.settled, self._seconds
            nothing_to_come = not seen.balance.missing or self._seconds - moved > QUIET
            if (self.traffic.crowd_sent.is_set() and nothing_to_come) or self._seconds > self.options.deadline:
                return self.watch.observe(list(self.traffic.sent), thoroughly=True)
            time.sleep(POLL_EVERY)

    def _stay(self) -> None:
        self.traffic.trickle()
        with self._screen() as show:
            while True:
                self._observe(show)
                time.sleep(POLL_EVERY)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _observe(self, show: Show) -> Seen:
        self.stack.check_processes()
        if self.traffic.error is not None:
            raise DemoError(f"Sending failed: {self.traffic.error!r}") from self.traffic.error
        seen = self.watch.observe(list(self.traffic.sent))
        show(seen)
        return seen

    @contextmanager
    def _screen(self) -> Iterator[Show]:
        """Yield a function that shows a state: a live display in a terminal, otherwise a line every other second."""
        if not self.console.is_terminal:
            yield self._print_line
            return
        with Live(console=self.console, refresh_per_second=4) as display:
            yield lambda seen: display.update(self._picture(seen))

    def _picture(self, seen: Seen) -> RenderableType:
        self.history.add(seen.parked)
        heading = Text(f"celery-rmq-delay demo   {self._seconds:3.0f} s", "bold")
        if not self.once:
            heading.append("   Ctrl-C ends it", "dim")
        return self.screen.live(seen, self.partners, self.history, heading)

    def _print_line(self, seen: Seen) -> None:
        if self._seconds - self._last_line >= LINE_EVERY:
            self._last_line = self._seconds
            print(self.screen.line(seen, self.partners, self._seconds), flush=True)

    def _sum_up(self, seen: Seen, collected: Collected) -> None:
        balance, gateway, mail = seen.balance, self.stack.gateway, self.stack.mail
        self.console.print()
        self.console.print(self.screen.summary(balance))
        self._print(f"\n{self.screen.orders(balance.orders)}")
        self._print(
            f"{len(gateway.ledger)} cards charged, each once; {gateway.repeats} charges repeated after a lost answer"
        )
        if seen.charged_unpaid:
            self._print(
                f"{seen.charged_unpaid} of them for exhausted orders: requeue these, they are not charged again"
            )
        repeats = sum(count - 1 for count in mail.delivered.values())
        self._print(f"{len(mail.delivered)} receipts delivered, {repeats or 'none'} of them twice")
        for problem in balance.problems[:20]:
            self.console.print(f"[bold red]problem:[/] {problem}", soft_wrap=True)
        for task_id in balance.missing[:20]:
            self.console.print(f"[bold red]unaccounted:[/] {task_id}", soft_wrap=True)
        self._print(self.screen.admin(collected, self.stack.web_url))
        if not collected.agrees_with(balance):
            self.console.print("[bold red]problem:[/] the admin's tables do not agree with the table above")
        if balance.holds and collected.agrees_with(balance):
            verdict = Text(f"\nEverything is accounted for after {self._seconds:.0f} s.", "bold green")
        else:
            count = len(balance.missing) + len(balance.problems) + (not collected.agrees_with(balance))
            verdict = Text(f"\n{count} problems were found (see above).", "bold red")
        self.console.print(verdict)
        if balance.missing and seen.waiting:
            self._print(
                f"{seen.waiting} tasks still wait in the queues: this machine needs more than "
                f"{self.options.deadline:.0f} s. Set a longer --deadline."
            )

    def _print(self, line: str) -> None:
        # If a program may read the output, do not wrap lines.
        self.console.print(line, soft_wrap=not self.console.is_terminal, highlight=self.console.is_terminal)


def show_addresses(console: Console, stack: Stack) -> None:
    """Print the addresses of all servers."""
    console.print()
    grid = Table.grid(padding=(0, 2))
    for name, address in stack.addresses.items():
        grid.add_row(Text(name, "dim"), address)
    console.print(grid)
    console.print()


def show_commands(console: Console, stack: Stack) -> None:
    """Print commands for another terminal."""
    console.print("[bold]In another terminal:[/]")
    celery = f"{Path(sys.executable).parent / 'celery'} -A shop"
    lines = [
        f"cd {PROJECT}",
        f". {stack.environment_file}",
        f"{celery} rmq-delay status",
        f"{sys.executable} manage.py rmq_delay_stats",
        f"{celery} rmq-delay doctor",
        f"tail -f {stack.worker_log}",
    ]
    for each in lines:
        console.print(f"  {each}", soft_wrap=True, highlight=False)
    console.print()


@contextmanager
def starting(console: Console, what: str) -> Iterator[None]:
    """Show that something is being started, and how long it took."""
    begun = time.monotonic()
    with console.status(f"Starting {what} ..."):
        yield
    console.print(f"[green]✓[/] {what} [dim]{time.monotonic() - begun:.1f} s[/]", highlight=False)


def main() -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m example_django_project.demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--orders", type=int, default=300, help="orders of the first burst (default: %(default)s)")
    parser.add_argument(
        "--deadline", type=float, default=90.0, help="seconds until all tasks must be settled (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of customers and cards (default: %(default)s)")
    options = parser.parse_args()
    once = os.environ.get("ONCE", "") not in {"", "0"}
    console = Console(width=None if sys.stdout.isatty() else 100)
    with ending_on_signals():
        try:
            with Stack(lambda what: starting(console, what), management=not once, admin=True) as stack:
                demo = Demo(console, stack, options, once=once)
                if not once:
                    show_addresses(console, stack)
                if demo.run():
                    if once:
                        console.print(
                            "[bold]make demo[/] without ONCE keeps running and shows how to inspect the tasks."
                        )
                    return 0
                console.print(f"The end of the worker's log:\n{stack.log_tail()}", soft_wrap=True, markup=False)
                return 1
        except (DemoError, PrivateServerError) as error:
            console.print(f"demo: {error}", style="red", soft_wrap=True, markup=False)
            return 1
        except KeyboardInterrupt:
            console.print("Stopped.")
            return 130 if once else 0


if __name__ == "__main__":
    sys.exit(main())
