"""The tables and lines that the demo shows in the terminal. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .outages import Mood
from .partners import Partner
from .reconcile import Balance, Row
from .watch import Collected, Ladder, Seen

COLOURS = {Mood.UP: "green", Mood.FLAKY: "yellow", Mood.SLOW: "magenta", Mood.DOWN: "bold red"}
BLOCKS = " ▁▂▃▄▅▆▇█"
KINDS = {
    "charge": "flaky payments",
    "send_receipt": "slow mail",
    "import_prices": "its own tiers",
    "sales_report": "has a bug",
    "warehouse.pick": "no worker has it",
}


def moods(partners: Iterable[Partner]) -> Text:
    """Return one line with the state of each partner, and for how long."""
    line = Text("The partners: ", no_wrap=True)
    for partner in partners:
        mood, left = partner.schedule.now()
        line.append("● ", COLOURS[mood])
        line.append(f"{partner.short_name} ")
        line.append(f"{mood.value:<5}", COLOURS[mood])
        line.append(f" {left:2.0f} s  ", "dim")
    return line


def ladders(found: list[Ladder]) -> Table:
    """Return the table of tiers with the number of parked tasks."""
    tiers = max(len(ladder.tiers) for ladder in found)
    table = Table(title="Parked in RabbitMQ", title_style="bold", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("queue", style="cyan", no_wrap=True, min_width=15)
    table.add_column("ready", justify="right", min_width=5)
    for tier in range(1, tiers + 1):
        table.add_column(f"tier {tier}", justify="right", min_width=9)
    table.add_column("parked", justify="right", min_width=6)
    for ladder in found:
        cells = [
            Text.assemble((f"{tier.delay:<3}", "dim"), (f"{tier.parked:>5}", "bold yellow" if tier.parked else "dim"))
            for tier in ladder.tiers
        ]
        cells += [Text("")] * (tiers - len(cells))
        ready = "" if ladder.ready is None else str(ladder.ready)
        table.add_row(ladder.name, ready, *cells, Text(str(ladder.parked), "bold"))
    return table


def tasks(balance: Balance) -> Table:
    """Return the table of tasks with their outcomes so far."""
    table = Table(title="Tasks", title_style="bold", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("task", style="cyan", no_wrap=True, min_width=15)
    table.add_column("", style="dim", no_wrap=True, min_width=15)
    for name in ("sent", "first try", "recovered", "exhausted", "open"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in _rows(balance):
        table.add_row(
            row.kind,
            KINDS.get(row.kind, ""),
            str(row.sent),
            Text(str(row.first_try), "green" if row.first_try else "dim"),
            Text(str(row.recovered), "bold green" if row.recovered else "dim"),
            Text(str(row.exhausted + row.gave_up), "red" if row.exhausted + row.gave_up else "dim"),
            Text(str(len(row.missing)), "yellow" if row.missing else "dim"),
        )
    return table


def _rows(balance: Balance) -> list[Row]:
    order = list(KINDS)
    return sorted(balance.rows.values(), key=lambda row: order.index(row.kind))


class History:
    """The recent numbers of parked tasks."""

    def __init__(self, length: int = 60) -> None:
        self._counts: deque[int] = deque(maxlen=length)

    def add(self, parked: int) -> None:
        """Record a count."""
        self._counts.append(parked)

    def __rich__(self) -> Text:
        top = max(1, *self._counts, 1)
        bars = "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // top)] for count in self._counts)
        return Text.assemble((bars, "yellow"), (f"  at most {top} parked", "dim"))


def live(seen: Seen, partners: Iterable[Partner], history: History, heading: Text) -> RenderableType:
    """Return the live display."""
    balance = seen.balance
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=max(1, balance.sent), completed=balance.settled, width=48),
        f"{balance.settled} of {balance.sent} tasks settled",
    )
    return Group(heading, moods(partners), "", ladders(seen.ladders), history, "", tasks(balance), "", bar)


def line(seen: Seen, partners: Iterable[Partner], seconds: float) -> str:
    """Return the state in one line, for output that is not a terminal."""
    balance = seen.balance
    how = [f"{partner.short_name} {partner.schedule.now()[0].value}" for partner in partners]
    parked = ", ".join(
        f"{ladder.name.strip()} {'+'.join(str(tier.parked) for tier in ladder.tiers)}" for ladder in seen.ladders
    )
    recovered = sum(row.recovered for row in balance.rows.values())
    return (
        f"{seconds:4.0f} s  settled {balance.settled}/{balance.sent}, recovered {recovered}, exhausted {seen.exhausted}"
        f" | parked {parked} | partners {', '.join(how)}"
    )


def summary(balance: Balance) -> Table:
    """Return the summary table."""
    table = Table(title="Where everything went", title_style="bold", title_justify="left", show_footer=True)
    rows = _rows(balance)

    def column(name: str, count: int, style: str = "") -> None:
        table.add_column(name, str(count), justify="right", style=style, footer_style="bold")

    table.add_column("task", "total", style="cyan", no_wrap=True, footer_style="bold")
    column("sent", balance.sent)
    column("first try", sum(row.first_try for row in rows), "green")
    column("recovered", sum(row.recovered for row in rows), "bold green")
    column("gave up", sum(row.gave_up for row in rows), "red")
    column("tiers used", sum(row.exhausted for row in rows), "red")
    column("missing", len(balance.missing))
    for row in rows:
        counts = (row.sent, row.first_try, row.recovered, row.gave_up, row.exhausted, len(row.missing))
        table.add_row(row.kind, *(str(count) if count else "·" for count in counts))
    return table


def orders(row: Row) -> str:
    """Return the sum of the orders."""
    return (
        f"{row.sent} orders = {row.first_try} paid at first try + {row.recovered} paid after retries "
        f"+ {row.gave_up} declined + {row.exhausted} exhausted + {len(row.missing)} unaccounted"
    )


def admin(collected: Collected, address: str) -> str:
    """Return a line about the contents of the admin's pages, with their address."""
    states = ", ".join(f"{count} {state.lower()}" for state, count in sorted(collected.states.items()))
    return f"The admin at {address}/admin/ shows {states or 'nothing'}, in {collected.groups} failure groups"


def insights(counts: Mapping[str, int], address: str) -> str:
    """Return a line about the contents of the insights page, with its address.

    An incident is compared with the failures of other half hours, so one round of the demo seldom has any.
    """
    shown = ", ".join(f"{count} {name}" for name, count in counts.items())
    compared = "" if counts["incidents"] else " (an incident is more failures than usual: this needs other half hours)"
    return f"The insights at {address}/admin/rmq_delay/insightrun/ show {shown}{compared}"
