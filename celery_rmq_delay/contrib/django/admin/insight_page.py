"""The page *Insights*: the results of the analytics about retry delays. Read-only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from ....history.tables import EXCEPTION, TASK
from ..conf import conf
from ..models import InsightRun, Row
from ..queries import grouped, plural
from . import text
from .charts.bursts import bursts_chart
from .charts.curves import Retries, curve_chart
from .collector_pages import FactsAdmin
from .error_advice import error_advice, give_up_snippet
from .ladders import advice, differs, snippet, what_if
from .outcomes import Outcome

#: Incidents that the table lists; the chart has all that are loaded.
LISTED = 20
#: The page warns that its data is old if the last day of the run is longer ago.
STALE_AFTER = timedelta(days=7)


class InsightRunAdmin(FactsAdmin):
    """One page instead of a list: there is one set of insights, that of the last run."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the insights."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        run = InsightRun.objects.order_by("-pk").first()
        shown = {"notes": [_empty()]} if run is None else self._shown(request, run)
        context = self.page_context(request, capfirst(str(self.opts.verbose_name_plural)), run=run, **shown)
        return TemplateResponse(request, "admin/rmq_delay/insights.html", context)

    def _shown(self, request: HttpRequest, run: InsightRun) -> dict[str, Any]:
        ladders = run.rows_of("ladder_advice")
        outcomes = run.rows_of("tier_outcomes")
        incidents = run.rows_of("incidents")
        curves = run.rows_of("recovery_curve")
        curve = _chosen(request, curves)
        exceptions = run.rows_of("exception_advice")
        return {
            "notes": _notes(run),
            "run_text": _run_text(run),
            "run_url": self.here("change", run.pk),
            "choices": list(_choices(curves, curve)),
            "curve": curve,
            "curve_text": curve and _curve_text(curve),
            "curve_chart": curve and curve_chart(curve.name, curve.points, _retries(curve, outcomes, ladders)),
            "advice": [advice(row) for row in ladders],
            "snippet": snippet(ladders),
            "error_advice": [error_advice(row) for row in exceptions],
            "give_up_snippet": give_up_snippet(exceptions),
            "what_if": what_if(run.rows_of("what_if")),
            "outcomes": [Outcome(row) for row in outcomes],
            "incidents": list(_incidents(incidents[:LISTED])),
            "listed": min(LISTED, len(incidents)),
            "more_incidents": len(incidents) > LISTED,
            "bursts": bursts_chart(run.rows_of("hourly"), incidents),
            "left_out": run.left_out,
        }

    def facts(self, request: HttpRequest, row: Any) -> list[tuple[str, str | SafeString]]:
        """Return the labels and values of a run."""
        now = timezone.now()
        return [
            ("Days", str(row)),
            ("History", text.hostile(row.input_url, 1_000)),
            ("Output", text.hostile(row.output_url, 1_000)),
            ("Tiers and incidents since", f"{row.since:%Y-%m-%d}"),
            ("Loaded", text.moment(row.loaded_at, now)),
            ("Report", format_html('<pre dir="auto" tabindex="0">{}</pre>', text.plain(_indented(row.report)))),
        ]


def _indented(report: object) -> str:
    return json.dumps(report, indent=2, ensure_ascii=False)


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
    return found + (
        "Curves and advice do not include the retries of tasks that were requeued after they were exhausted."
    )


def _chosen(request: HttpRequest, curves: Sequence[Row]) -> Row | None:
    """Return the curve that the query string names; by default the first, of the task that failed most."""
    for scope in (TASK, EXCEPTION):
        name = request.GET.get(scope)
        for curve in curves:
            if (curve.scope, curve.name) == (scope, name):
                return curve
    return next(iter(curves), None)


def _curve_text(curve: Row) -> str:
    censored = grouped(curve.censored)
    return f"{grouped(curve.episodes)} failures that were retried; the end of {censored} was not observed."


def _choices(curves: Sequence[Row], chosen: Row | None) -> Iterator[tuple[str, list[Any]]]:
    """Yield the links to the curves, by scope."""
    for scope, title in ((TASK, "Tasks"), (EXCEPTION, "Errors")):
        links = [
            {
                "query": f"?{urlencode({scope: curve.name})}",
                "name": text.dotted(curve.name, 120),
                "episodes": grouped(curve.episodes),
                "here": curve is chosen,
            }
            for curve in curves
            if curve.scope == scope
        ]
        if links:
            yield title, links


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


def _incidents(incidents: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for each in incidents:
        lasted = (each.ended_at - each.started_at).total_seconds()
        yield {
            "started_at": each.started_at,
            "started": text.absolute(each.started_at),
            "lasted": text.rough(lasted),
            **{
                name: [text.dotted(one, 120) for one in getattr(each, name)]
                for name in ("queues", "tasks", "exceptions")
            },
            "excess": grouped(each.excess),
            "peak": grouped(each.peak_per_minute),
            "rate": text.share(each.failure_rate),
            "usual": each.usual_rate is not None and f"usually {text.share(each.usual_rate)}",
            "touched": f"{grouped(each.tasks_touched)} {plural(each.tasks_touched, 'task', 'tasks')}",
            "recovered": text.share(each.recovered_share),
            "wasted": text.rough(each.wasted_ms / 1000),
        }
