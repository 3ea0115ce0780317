"""Charts of benchmarks as SVG: the same figures produce the same file, byte by byte, with the same matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

OURS, OTHER, FLOOR, BAD = "#00695c", "#90a4ae", "#cfd8dc", "#c62828"
_STYLE = {
    "svg.hashsalt": "benchmarks",
    "svg.fonttype": "path",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Bar:
    """One bar; without a ``value`` there is none, and ``text`` states why; ``more`` is stacked on it, in red."""

    label: str
    value: float | None
    text: str
    colour: str = OTHER
    more: float = 0.0


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from the top down; ``log`` for values of several orders of magnitude."""

    title: str
    bars: Sequence[Bar]
    log: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines over a common axis: (label, colour, xs, ys) each; ``marks`` are (x, text) of events."""

    title: str
    x_label: str
    lines: Sequence[tuple[str, str, Sequence[float], Sequence[float]]]
    marks: Sequence[tuple[float, str]] = ()


def write(panels: Sequence[Bars | Lines], path: Path, *, columns: int = 2) -> None:
    """Draw panels, ``columns`` side by side, into an SVG file."""
    rows = math.ceil(len(panels) / columns)
    most = max(len(panel.bars) for panel in panels if isinstance(panel, Bars)) if _has_bars(panels) else 8
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * columns, (0.3 * most + 0.75) * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis, panel in zip(axes, panels, strict=False):
            (_draw_bars if isinstance(panel, Bars) else _draw_lines)(axis, panel)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def _has_bars(panels: Sequence[Bars | Lines]) -> bool:
    return any(isinstance(panel, Bars) for panel in panels)


def _draw_bars(axis: Any, panel: Bars) -> None:
    places = range(len(panel.bars))
    values = [bar.value or 0.0 for bar in panel.bars]
    ends = [value + bar.more for value, bar in zip(values, panel.bars, strict=True)]
    log = panel.log and any(ends)
    start = 10 ** math.floor(math.log10(min(end for end in ends if end) / 1.5)) if log else 0.0
    axis.barh(places, values, color=[bar.colour for bar in panel.bars], height=0.65)
    axis.barh(places, [bar.more for bar in panel.bars], left=values, color=BAD, height=0.65)
    if log:
        axis.set_xscale("log")
        axis.set_xlim(start, max(*ends, start * 10) * 12)
    else:
        axis.set_xlim(0, max([*ends, 1e-9]) * 1.4)
    for place, bar, end in zip(places, panel.bars, ends, strict=True):
        shown = max(end, start)
        axis.annotate(
            bar.text,
            (shown, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            color=BAD if bar.value is None else "#263238",
        )
    axis.set_yticks(places, [bar.label for bar in panel.bars])
    axis.invert_yaxis()
    axis.set_title(panel.title, loc="left")
    axis.tick_params(axis="y", length=0)


def _draw_lines(axis: Any, panel: Lines) -> None:
    for label, colour, xs, ys in panel.lines:
        axis.plot(xs, ys, color=colour, linewidth=1.4, label=label)
    for x, text in _apart(panel):
        axis.axvline(x, color="#b0bec5", linewidth=0.8, linestyle="--")
        at = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top", "fontsize": 8}
        axis.annotate(text, (x, 0.99), (1, 0), rotation=90, color="#607d8b", **at)
    axis.set_ylim(0, 1.15 * max((max(ys) for *_, ys in panel.lines if ys), default=1.0) or 1.0)
    axis.set_xlabel(panel.x_label)
    axis.set_title(panel.title, loc="left")
    if len(panel.lines) > 1:
        axis.legend(frameon=False, loc="best")


def _apart(panel: Lines) -> list[tuple[float, str]]:
    """Return the marks whose texts do not overlap: of close neighbours, the later ones."""
    ends = [x for *_, xs, _ in panel.lines if xs for x in (xs[0], xs[-1])]
    room = 0.03 * (max(ends) - min(ends)) if ends else 0.0
    following = [*(x for x, _ in panel.marks[1:]), float("inf")]
    return [mark for mark, after in zip(panel.marks, following, strict=False) if after - mark[0] > room]
