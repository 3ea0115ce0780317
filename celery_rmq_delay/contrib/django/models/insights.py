"""The results of a run of the analytics that the page *Insights* shows. Loading replaces all of them."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

from django.db import models

from ....history.tables import TABLES

#: A row of a table of the analytics, with the columns of `history.tables.TABLES` as attributes. Figures are
#: ``[value, low, high]`` by name in ``current``, ``advised``, ``backtest_current``, ``backtest_advised`` and
#: ``figures``; a recovery curve is one row, whose ``points`` are ``[seconds, share, low, high]``.
Row = SimpleNamespace


class InsightRun(models.Model):
    """The loaded run of the analytics."""

    #: The URLs of input and output, without credentials.
    input_url = models.TextField("history", blank=True)
    output_url = models.TextField("output")
    #: The first and last day (UTC) of the run.
    first_day = models.DateField()
    last_day = models.DateField()
    #: The first day of tiers, incidents and hours, with the days of earlier runs.
    since = models.DateField("tiers and incidents since")
    loaded_at = models.DateTimeField("loaded")
    #: The run's own report: rows read, rejected, written.
    report = models.JSONField(default=dict, blank=True)
    #: The number of rows that were left out, by table: only the most frequent ones are loaded.
    left_out = models.JSONField(default=dict, blank=True)
    #: The rows that the page shows, by table; times as text in ISO 8601. `rows_of` reads them.
    rows = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = "insights of a run"
        verbose_name_plural = "insights"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.first_day:%Y-%m-%d} to {self.last_day:%Y-%m-%d}"

    def rows_of(self, table: str) -> list[Row]:
        """Return the rows of a table, such as ``incidents``, in the order of the page."""
        times = [name for name, kind in TABLES[table].items() if kind == "time"]
        return [
            Row(**{**row, **{name: datetime.fromisoformat(row[name]) for name in times if name in row}})
            for row in self.rows.get(table, ())
        ]
