"""Write the parts of documentation pages that come from benchmarks: between two comments that name the part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks import charts
from benchmarks.contenders import CHECKOUT
from benchmarks.output import Table, tables_lines

PAGES, ASSETS = CHECKOUT / "docs", CHECKOUT / "docs/assets"
RESULTS = CHECKOUT / "benchmarks/results"


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with another text in the part ``name``; raise `ValueError` if it has no such part."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs one part between {begin.strip()} and {end}")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text.strip()}\n\n{end}{after}"


def write(
    page: str,
    name: str,
    picture: tuple[str, Sequence[charts.Bars | charts.Lines]],
    tables: Iterable[Table],
    notes: Iterable[str],
    machine: dict[str, str],
    *,
    texts: int = 1,
) -> None:
    """Write the results of a benchmark into the part ``name`` of a page in a folder of docs.

    ``picture`` is the description and panels of the chart, drawn into docs/assets; the first ``texts`` columns of the
    tables are text; the notes and the machine follow them.
    """
    shows, panels = picture
    charts.write(panels, ASSETS / f"{name}.svg")
    lines = [f"![{shows}](../assets/{name}.svg)", "", *tables_lines(tables, texts=texts)]
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    lines += [f"* {note}" for note in (*notes, facts)]
    path = PAGES / page
    path.write_text(replaced(path.read_text(), name, "\n".join(lines)))


def keep(name: str, json: str) -> None:
    """Store the figures of a part of the documentation."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json)
