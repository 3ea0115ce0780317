#!/usr/bin/env python3
"""Draw the Grafana dashboard for the documentation, without Grafana: ``docs/assets/grafana-dashboard.png``.

A real shop with outages runs for five minutes, and a real Prometheus reads its collector. Then each panel is drawn from
the answers of Prometheus to its queries, at its place and with its unit and colors. Needs ``prometheus`` in PATH.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import matplotlib as mpl  # noqa: E402 - after the path

mpl.use("agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator  # noqa: E402

from celery_rmq_delay.testing import PrivateBroker  # noqa: E402
from celery_rmq_delay.testing.servers.host import free_port  # noqa: E402
from tests.support import monitoring  # noqa: E402
from tests.support.browser.shop import Shop  # noqa: E402
from tests.support.prometheus import PrivatePrometheus  # noqa: E402
from tests.support.servers.redis import PrivateRedis  # noqa: E402
from tests.support.waiting import wait_for  # noqa: E402

PICTURE = ROOT / "docs" / "assets" / "grafana-dashboard.png"
#: Seconds of the run, and between two points of a line; pixels of a cell of the dashboard's grid.
LENGTH, STEP = 300, 2
CELL = (56, 34)
DPI, GAP = 100, 8
BACKGROUND, PANEL, TEXT, DIM, LINES = "#111217", "#181b1f", "#d8d9da", "#8e8e8e", "#2c3235"
COLORS = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#b877d9", "#5794f2")

Series = tuple[str, list[float]]


# -- the run ----------------------------------------------------------------------------------------------------------


def partner(name: str, mood: str) -> Callable[[Shop], object]:
    """Return a step of the run: a partner of the shop changes."""
    return lambda shop: shop.call("partner_is", name, mood)


def operate(number: int, *arguments: str) -> Callable[[Shop], object]:
    """Return a step of the run: a user starts an operation."""
    return lambda shop: shop.start(f"operation-{number}", "rmq_delay_operate", *arguments, "--reason", "back again")


def reports(shop: Shop) -> None:
    """Send tasks that fail because of a bug."""
    for day in range(1, 7):
        shop.call("send", "orders.tasks.sales_report", [f"2026-06-0{day}"], {}, f"report-{day}")


#: What happens after so many seconds. Orders come all the time.
STEPS: tuple[tuple[float, Callable[[Shop], object]], ...] = (
    (0, partner("feeds", "up")),
    (30, reports),
    (60, partner("payments", "down")),
    (100, partner("payments", "up")),
    (150, partner("mail", "down")),
    (166, partner("mail", "up")),
    (185, operate(1, "requeue", "--queue", "payments", "--canary", "3", "--rate", "120")),
    (230, operate(2, "discard", "--id", "report-1")),
    (240, partner("payments", "down")),
    (275, partner("payments", "up")),
)


def run(shop: Shop) -> None:
    """Place two orders a second, and take the steps."""
    steps, begin, number = list(STEPS), time.monotonic(), 0
    while (now := time.monotonic() - begin) < LENGTH:
        while steps and steps[0][0] <= now:
            steps.pop(0)[1](shop)
        shop.call("order", f"run{number:04}", 1)
        number += 1
        time.sleep(max(0.0, number * 0.5 - (time.monotonic() - begin)))


# -- the picture ------------------------------------------------------------------------------------------------------


def words(value: float, unit: str, decimals: int = 1) -> str:
    """Return a value with its unit, as Grafana shows it."""
    if unit == "percentunit":
        return f"{100 * value:.{decimals if value % 0.01 else 0}f} %"
    if unit == "s":
        size, name = next(((s, n) for s, n in ((86400, "days"), (3600, "h"), (60, "min")) if value >= 2 * s), (1, "s"))
        size, name = (0.001, "ms") if 0 < value < 1 else (size, name)
        return f"{value / size:.{0 if size == 0.001 else decimals}f} {name}"
    end = " c/m" if unit == "cpm" else ""
    return f"{value:.{0 if value == int(value) else max(1, decimals)}f}{end}"


def answers(prometheus: PrivatePrometheus, panel: dict[str, Any], start: float, end: float) -> list[Series]:
    """Return name and values of each series of a panel, at all times from ``start``; exit where a query has none."""
    found: list[Series] = []
    for target in panel["targets"]:
        begin = end if target.get("instant") else start
        got = prometheus.series(monitoring.expression(target, rate_interval="30s"), begin, end, STEP)
        if not got:
            sys.exit(f"{panel['title']}: Prometheus has no data for {target['expr']}")
        for each in got:
            name = target["legendFormat"]
            for label, value in each["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            values = [math.nan] * (int((end - begin) / STEP) + 1)
            for time_, value in each["values"]:
                values[round((time_ - begin) / STEP)] = float(value)
            found.append((name, values))
    return sorted(found) if len(panel["targets"]) == 1 else found


def last(values: list[float]) -> float:
    """Return the last value that is a number."""
    return next(value for value in reversed(values) if not math.isnan(value))


def color(panel: dict[str, Any], value: float) -> str:
    """Return the color of a value by the panel's thresholds, or its fixed color."""
    defaults = panel["fieldConfig"]["defaults"]
    if defaults["color"]["mode"] == "fixed":
        return COLORS[defaults["color"]["fixedColor"]]
    steps = defaults["thresholds"]["steps"]
    return COLORS[[step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1]]


def stat(axes: Axes, panel: dict[str, Any], series: list[Series]) -> None:
    """Draw the last values in large letters, and the first series as an area below."""
    defaults = panel["fieldConfig"]["defaults"]
    names = {value: each["text"] for mapping in defaults["mappings"] for value, each in mapping["options"].items()}
    axes.axis("off")
    for place, (name, values) in enumerate(series):
        now = last(values)
        text, height = names.get(f"{now:.0f}", words(now, defaults["unit"])), 0.5
        style = {"transform": axes.transAxes, "va": "center"}
        if len(series) == 1:
            axes.text(0.5, height, text, color=color(panel, now), ha="center", fontsize=20, weight="bold", **style)
        else:
            height = 0.66 - 0.42 * place
            axes.text(0.08, height, name, color=TEXT, fontsize=8, **style)
            axes.text(0.92, height, text, color=color(panel, now), ha="right", fontsize=13, weight="bold", **style)
    if panel["options"]["graphMode"] == "area":
        area = axes.inset_axes((0, -0.12, 1, 0.32))
        area.axis("off")
        _, values = series[0]
        area.fill_between(range(len(values)), values, color=color(panel, last(values)), alpha=0.35, linewidth=0)
        area.set_xlim(0, len(values) - 1)
        area.set_ylim(0, max(1, *(value for value in values if not math.isnan(value))))


def timeseries(axes: Axes, panel: dict[str, Any], series: list[Series]) -> None:
    """Draw lines over time, or stacked areas."""
    defaults = panel["fieldConfig"]["defaults"]
    times = [STEP * number / 60 for number in range(len(series[0][1]))]
    axes.grid(color=LINES, linewidth=0.6)
    if "stacking" in defaults["custom"]:
        areas = [[0.0 if math.isnan(value) else value for value in values] for _, values in series]
        names = [name for name, _ in series]
        axes.stackplot(times, areas, labels=names, colors=PALETTE, alpha=0.6, linewidth=0)
    else:
        for (name, values), line in zip(series, PALETTE * 3, strict=False):
            axes.plot(times, values, color=line, label=name, linewidth=1.2)
    axes.set_xlim(0, times[-1])
    axes.set_ylim(defaults.get("min"), defaults.get("max"))
    if defaults.get("min") == 0 and axes.get_ylim()[1] < 1 and defaults["unit"] == "short":
        axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f} min"))
    steps = [1, 3, 6, 10] if defaults["unit"] == "s" else [1, 2, 2.5, 5, 10]
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=steps, integer=defaults["unit"] == "short"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value, defaults["unit"], 0)))
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.13), ncols=5, frameon=False, fontsize=7.5, labelcolor=TEXT,
                handlelength=1.2, columnspacing=1.2)  # fmt: skip


def bargauge(axes: Axes, panel: dict[str, Any], series: list[Series]) -> None:
    """Draw the last values as bars."""
    axes.axis("off")
    most = max(last(values) for _, values in series)
    for place, (name, values) in enumerate(series):
        now = last(values)
        axes.barh(place, most, color=LINES, height=0.55)
        axes.barh(place, now, color=color(panel, now), height=0.55)
        axes.text(-0.02 * most, place, name, color=TEXT, ha="right", va="center", fontsize=8)
        axes.text(1.02 * most, place, words(now, "short"), color=TEXT, va="center", fontsize=9)
    axes.set_ylim(max(3, len(series)), -1)
    axes.set_xlim(-0.35 * most, 1.1 * most)


DRAWINGS = {"stat": stat, "timeseries": timeseries, "bargauge": bargauge}
#: Margins within a panel, in pixels: left, bottom, right, top.
MARGINS = {"stat": (4, 8, 4, 30), "timeseries": (52, 54, 14, 36), "bargauge": (14, 14, 14, 36)}


def draw(prometheus: PrivatePrometheus, start: float, end: float) -> None:
    """Draw all panels at their places."""
    board = monitoring.dashboard()
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    head = 44
    width, height = 24 * CELL[0] + GAP, rows * CELL[1] + head + GAP
    figure = pyplot.figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=BACKGROUND)
    mpl.rcParams.update({"text.color": TEXT, "xtick.color": DIM, "ytick.color": DIM, "font.size": 8})
    figure.text(GAP / width, 1 - 20 / height, board["title"], fontsize=13, va="center")
    figure.text(1 - GAP / width, 1 - 20 / height, f"Queue: All    last {LENGTH // 60} minutes", ha="right", va="center",
                color=DIM, fontsize=9)  # fmt: skip
    for panel in board["panels"]:
        at = panel["gridPos"]
        x, w = at["x"] * CELL[0] + GAP, at["w"] * CELL[0] - GAP
        y, h = height - head - (at["y"] + at["h"]) * CELL[1] + GAP, at["h"] * CELL[1] - GAP
        corner, size = (x / width, y / height), (w / width, h / height)
        style = {"facecolor": PANEL, "edgecolor": LINES, "linewidth": 0.8, "zorder": -1}
        figure.add_artist(pyplot.Rectangle(corner, *size, transform=figure.transFigure, **style))
        figure.text((x + 8) / width, (y + h - 16) / height, panel["title"], fontsize=8.5, va="center", weight="bold")
        left, bottom, right, top = MARGINS[panel["type"]]
        box = ((x + left) / width, (y + bottom) / height, (w - left - right) / width, (h - bottom - top) / height)
        axes = figure.add_axes(box, facecolor="none")
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0)
        DRAWINGS[panel["type"]](axes, panel, answers(prometheus, panel, start, end))
    figure.savefig(PICTURE, facecolor=BACKGROUND, pil_kwargs={"optimize": True})


def main() -> None:
    """Run the shop, then draw."""
    target = f"127.0.0.1:{free_port()}"
    with (
        tempfile.TemporaryDirectory() as folder,
        PrivateBroker() as broker,
        PrivateRedis() as redis,
        Shop(broker.url, redis.url, Path(folder), settings="shop.settings_demo") as shop,
        PrivatePrometheus(target) as prometheus,
    ):
        shop.start("collector", "rmq_delay_collect", "--http", target)
        shop.start("operator", "rmq_delay_operate")
        wait_for(lambda: prometheus.ask("query", query="rmq_delay_broker_up")["result"], "the first metrics")
        start = time.time()
        run(shop)
        draw(prometheus, start, time.time())
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
