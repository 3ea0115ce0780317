"""The page *Insights*: the results of the analytics about retry delays. Read-only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from math import sqrt
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.text import capfirst

from ....history.tables import EXCEPTION, TASK
from ..conf import conf
from ..models import InsightRun, Row
from . import text
from .advice import advice, differs, error_advice, give_up_snippet, snippet, what_if
from .charts import bursts_chart
from .curves import Retries, curve_chart
from .facts import FactsAdmin

#: Incidents that the table lists; the chart has all that are loaded.
LISTED = 20
#: The page warns that its data is old if the last day of the run is longer ago.
STALE_AFTER = timedelta(days=7)
#: The quantile of the normal distribution for 95 %.
_Z = 1.959963984540054
_BAR = (
    '<svg class="rmq-rate" aria-hidden="true"><rect class="rmq-bar rmq-bar-parked" x="0" y="2" width="{}%" height="10">'
    '</rect><line x1="{}%" x2="{}%" y1="7" y2="7"></line></svg>'
)


class InsightRunAdmin(FactsAdmin):
    """One page instead of a list: there is one set of insights, that of the last run."""

    row_template = "admin/rmq_delay/insight_run.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        run = InsightRun.objects.order_by("-pk").first()
        shown = {"notes": [_empty()]} if run is None else self._shown(request, run)
        context = self.page_context(request, capfirst(str(self.opts.verbose_name_plural)), run=run, **shown)
        return TemplateResponse(request, "admin/rmq_delay/insights.html", context)

    def _shown(self, request: HttpRequest, run: InsightRun) -> dict[str, Any]:
        ladders, curves, exceptions, incidents, outcomes = map(
            run.rows_of, ("ladder_advice", "recovery_curve", "exception_advice", "incidents", "tier_outcomes")
        )
        curve = _chosen(request, curves)
        return {
            "notes": _notes(run),
            "run_text": _run_text(run),
            "run_url": self.here("change", run.pk),
            "choices": [
                (title, [each for each in curves if each.scope == scope])
                for scope, title in ((TASK, "Tasks"), (EXCEPTION, "Errors"))
            ],
            "curve": curve,
            "curve_chart": curve and curve_chart(curve.name, curve.points, _retries(curve, outcomes, ladders)),
            "advice": [advice(row) for row in ladders],
            "snippet": snippet(ladders),
            "error_advice": [error_advice(row) for row in exceptions],
            "give_up_snippet": give_up_snippet(exceptions),
            "what_if": what_if(run.rows_of("what_if")),
            "outcomes": [(row, *_rate(row)) for row in outcomes],
            "incidents": [(each, each.ended_at - each.started_at) for each in incidents[:LISTED]],
            "more_incidents": len(incidents) > LISTED,
            "bursts": bursts_chart(run.rows_of("hourly"), incidents),
            "left_out": run.left_out,
        }

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {"report": json.dumps(row.report, indent=2, ensure_ascii=False)}


def _empty() -> str:
    if conf().history_url is None:
        return (
            "There are no insights yet. Set RMQ_DELAY['HISTORY_URL'], let the collector write history for some days, "
            "then run “manage.py rmq_delay_insights”."
        )
    return "There are no insights yet: run “manage.py rmq_delay_insights”."


def _notes(run: InsightRun) -> list[str]:
    """Return the warnings of the page."""
    found = []
    if timezone.now().date() - run.last_day > STALE_AFTER:
        found.append(
            f"These insights end on {run.last_day:%Y-%m-%d}: run “manage.py rmq_delay_insights” for newer ones."
        )
    clocks = run.report.get("clocks") or {}
    if isinstance(clocks, dict) and clocks:
        names = ", ".join(text.plain(str(name), 60) for name in list(clocks)[:LISTED])
        found.append(f"The clocks of these workers differ, so that times on this page are wrong: {names}")
    return found


def _run_text(run: InsightRun) -> str:
    loaded = text.relative(run.loaded_at - timezone.now())
    found = f"{run}, loaded {loaded}. Nothing on this page is applied automatically. "
    if run.since < run.first_day:
        found += f"Tiers and incidents cover all days since {run.since:%Y-%m-%d}. "
    begun = text.plain(run.report.get("advice_from") or "", 10)
    if begun and begun < f"{run.first_day:%Y-%m-%d}":
        found += f"Curves and advice use data since {begun}. "
    return f"{found}Curves and advice do not include the retries of tasks that were requeued after they were exhausted."


def _chosen(request: HttpRequest, curves: Sequence[Row]) -> Row | None:
    """Return the curve that the query string names; by default the first, of the task that failed most."""
    for scope in (TASK, EXCEPTION):
        name = request.GET.get(scope)
        for curve in curves:
            if (curve.scope, curve.name) == (scope, name):
                return curve
    return next(iter(curves), None)


def _retries(curve: Row, outcomes: Sequence[Row], ladders: Sequence[Row]) -> list[Retries]:
    """Return the ladders to draw on a curve: those of the queue with most of its parked attempts."""
    of_task = curve.scope == TASK
    queues: Counter[str] = Counter()
    for outcome in outcomes:
        if curve.name == (outcome.task if of_task else outcome.exception_type):
            queues[outcome.queue] += outcome.parked
    queue = queues.most_common(1)[0][0] if queues else None
    own = [row for row in ladders if of_task and row.task == curve.name and queue in (None, row.queue)]
    whole = [row for row in ladders if not row.task and row.queue == queue]
    row = next(iter([*own, *whole]), None)
    if row is None:
        return []
    found = [Retries("today", f"today ({text.plain(row.queue, 60)})", row.current_ms)]
    if differs(row):
        found.append(Retries("advised", "advised", row.advised_ms))
    return [each for each in found if each.delays_ms]


def wilson(good: int, of: int, independent: float | None = None) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927); from 0 to 1 without trials.

    ``independent``: of these, how many independent trials would vary as much; None: all are independent.
    """
    if not of:
        return 0.0, 1.0
    share, z2 = good / of, _Z * _Z
    trials = of if independent is None else max(min(independent, of), 1.0)
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def _rate(row: Row) -> tuple[str, str, str]:
    """Return the share that recovered at the next attempt, its interval, and both as a bar."""
    if not row.parked:
        return text.EMPTY, "", ""
    share = row.recovered / row.parked
    low, high = wilson(min(row.recovered, row.parked), row.parked, row.independent)
    bar = format_html(_BAR, *(round(100 * each, 1) for each in (min(1.0, share), low, high)))
    return text.share(share), text.interval(low, high, text.share), bar
