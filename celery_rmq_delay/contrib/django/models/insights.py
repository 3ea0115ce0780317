"""The results of a run of the analytics that the page *Insights* shows. Loading replaces all of them."""

from __future__ import annotations

from django.db import models


class InsightRun(models.Model):
    """The loaded run of the analytics."""

    #: The URLs of input and output, without credentials.
    input_url = models.TextField("history", blank=True)
    output_url = models.TextField("output")
    #: The first and last day (UTC) of the run.
    first_day = models.DateField("first day")
    last_day = models.DateField("last day")
    #: The first day of tiers, incidents and hours, with the days of earlier runs.
    since = models.DateField("tiers and incidents since")
    loaded_at = models.DateTimeField("loaded")
    #: The run's own report: rows read, rejected, written.
    report = models.JSONField("report", default=dict, blank=True)
    #: The number of rows that were left out, by table: only the most frequent ones are loaded.
    left_out = models.JSONField("left out", default=dict, blank=True)

    class Meta:
        verbose_name = "insights of a run"
        verbose_name_plural = "insights"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.first_day:%Y-%m-%d} to {self.last_day:%Y-%m-%d}"


class _OfRun(models.Model):
    """A row of a run; ``position`` is its place on the page."""

    run = models.ForeignKey(InsightRun, models.CASCADE, related_name="%(class)ss")
    position = models.PositiveIntegerField()

    class Meta:
        abstract = True
        default_permissions = ()
        ordering = ("position",)


class RecoveryCurve(_OfRun):
    """The share of failure episodes that have recovered by a time after their start, for a task or an error class."""

    class Scope(models.TextChoices):
        """The scopes of a curve."""

        TASK = "task", "task"
        ERROR = "exception", "error"

    scope = models.CharField(max_length=9, choices=Scope.choices)
    name = models.TextField()
    episodes = models.PositiveBigIntegerField()
    censored = models.PositiveBigIntegerField()
    #: ``[seconds, share, low, high]``, in the order of time; ``low`` and ``high`` may be null.
    points = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class TierOutcome(_OfRun):
    """The outcomes of attempts after a wait in one tier, with all its jitter lanes; ``tier`` null is an exact delay."""

    task = models.TextField()
    queue = models.TextField()
    exception_type = models.TextField(blank=True)
    tier = models.IntegerField(null=True)
    delay_ms = models.BigIntegerField(null=True)
    parked = models.PositiveBigIntegerField()
    recovered = models.PositiveBigIntegerField()
    exhausted = models.PositiveBigIntegerField()
    #: How many independent tasks would vary as much as these; null: not known.
    independent = models.FloatField(null=True)
    wasted_ms = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.task} {self.queue} {self.tier}"


class Incident(_OfRun):
    """A burst of failures; the one with the most failures beyond the usual number is the first."""

    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    queues = models.JSONField(default=list, db_default=[])
    tasks = models.JSONField(default=list)
    exceptions = models.JSONField(default=list)
    peak_per_minute = models.PositiveBigIntegerField()
    #: Failed first attempts beyond the usual number.
    excess = models.PositiveBigIntegerField(default=0, db_default=0)
    #: The share of first attempts that failed, and the usual share; null where successful ones are not known.
    failure_rate = models.FloatField(null=True)
    usual_rate = models.FloatField(null=True)
    tasks_touched = models.PositiveBigIntegerField()
    #: Null where no task has recovered or is exhausted.
    recovered_share = models.FloatField(null=True)
    wasted_ms = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"


class LadderAdvice(_OfRun):
    """The present ladder of a queue, or of one task in it, and the advised one."""

    queue = models.TextField()
    #: Empty for the whole queue.
    task = models.TextField(blank=True)
    enough_data = models.BooleanField()
    #: Why this ladder is advised, or none.
    reason = models.TextField(blank=True)
    #: What would show more; empty if the history shows enough.
    learn = models.TextField(blank=True, default="")
    episodes = models.PositiveBigIntegerField()
    recoveries = models.PositiveBigIntegerField(default=0)
    current_ms = models.JSONField(default=list)
    #: Empty if nothing is advised.
    advised_ms = models.JSONField(default=list)
    #: The best ladder found, if it failed its backtest and is not advised for this reason; else empty.
    refused_ms = models.JSONField(default=list)
    #: Of ``recoveries``, those that the advised ladder may lose.
    lost = models.PositiveBigIntegerField(null=True)
    #: Failures with today's ladder of which ``current`` are counts; null: they are estimates.
    counted = models.PositiveBigIntegerField(null=True)
    #: ``[value, low, high]`` by name, each of them null where it is not known.
    current = models.JSONField(default=dict)
    advised = models.JSONField(default=dict)
    #: What decides when a task recovers, ``time`` or ``attempts``; empty: the history does not show it. And the most
    #: failures, as a share, for which the number of attempts counts; null: not known.
    model = models.CharField(max_length=8, blank=True, default="")
    by_attempts_high = models.FloatField(null=True)
    #: Failures of the last days, which the advice does not know, and by name the figures of both ladders on them.
    backtest_failures = models.PositiveBigIntegerField(null=True)
    backtest_current = models.JSONField(default=dict)
    backtest_advised = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.queue} {self.task}".strip()


class ExceptionAdvice(_OfRun):
    """An exception of a task that no retry helps, or that needs no long tier."""

    class Kind(models.TextChoices):
        """The kinds of advice."""

        GIVE_UP = "give_up", "give up"
        FEWER_TIERS = "fewer_tiers", "fewer tiers"

    queue = models.TextField()
    task = models.TextField()
    exception_type = models.TextField()
    kind = models.CharField(max_length=11, choices=Kind.choices)
    failures = models.PositiveBigIntegerField()
    recovered = models.PositiveBigIntegerField()
    #: The 95 % interval of the share that recovers.
    share_low = models.FloatField(null=True)
    share_high = models.FloatField(null=True)
    #: The time within which all recovered, or after which the last attempt came; and the tiers that none needed.
    longest_s = models.FloatField(null=True)
    needless_ms = models.JSONField(default=list)
    #: ``GIVE_UP``: the retries and the worker time that giving up at once would have saved.
    retries = models.PositiveBigIntegerField(null=True)
    wasted_ms = models.PositiveBigIntegerField(null=True)

    def __str__(self) -> str:
        return f"{self.exception_type} {self.task} {self.queue}"


class WhatIf(_OfRun):
    """The estimated result of a ladder that was passed as an option; figures as in `LadderAdvice`."""

    queue = models.TextField()
    ladder_ms = models.JSONField(default=list)
    enough_data = models.BooleanField()
    #: Why there are no figures.
    reason = models.TextField(blank=True)
    episodes = models.PositiveBigIntegerField()
    figures = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.queue


class InsightHour(_OfRun):
    """The counts of one hour, all queues and tasks together."""

    hour = models.DateTimeField()
    first_attempts = models.PositiveBigIntegerField()
    failures = models.PositiveBigIntegerField()
    recovered = models.PositiveBigIntegerField()
    exhausted = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:00}"
