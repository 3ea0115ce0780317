"""What a finished run of the analytics says, as far as the page *Insights* shows it. Loading replaces all of it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class InsightRun(models.Model):
    """One run of the pipeline that was loaded; the page shows the last one."""

    #: Where the run read and wrote, without credentials.
    input_url = models.TextField(_("history"), blank=True)
    output_url = models.TextField(_("output"))
    #: The days of UTC that it is about, both included.
    first_day = models.DateField(_("first day"))
    last_day = models.DateField(_("last day"))
    #: The first day of tiers, incidents and hours: those of earlier runs count, too.
    since = models.DateField(_("tiers and incidents since"))
    loaded_at = models.DateTimeField(_("loaded"))
    #: The run's own report: rows read, rejected, written.
    report = models.JSONField(_("report"), default=dict, blank=True)
    #: How many rows of each table were left out: the page shows the most frequent only.
    left_out = models.JSONField(_("left out"), default=dict, blank=True)

    class Meta:
        verbose_name = _("insights of a run")
        verbose_name_plural = _("insights")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.first_day:%Y-%m-%d} to {self.last_day:%Y-%m-%d}"


class _OfRun(models.Model):
    """A row that goes with its run; ``position`` is its place on the page."""

    run = models.ForeignKey(InsightRun, models.CASCADE, related_name="%(class)ss")
    position = models.PositiveIntegerField()

    class Meta:
        abstract = True
        default_permissions = ()
        ordering = ("position",)


class RecoveryCurve(_OfRun):
    """The share of failures that are over by a time after their beginning, of one task or one class of error."""

    class Scope(models.TextChoices):
        """What a curve is of."""

        TASK = "task", _("task")
        ERROR = "exception", _("error")

    scope = models.CharField(max_length=9, choices=Scope.choices)
    name = models.TextField()
    episodes = models.PositiveBigIntegerField()
    censored = models.PositiveBigIntegerField()
    #: ``[seconds, share, low, high]``, in the order of time; ``low`` and ``high`` may be null.
    points = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class TierOutcome(_OfRun):
    """How the attempts went that followed a wait in one tier; ``tier`` null is an exact delay."""

    task = models.TextField()
    queue = models.TextField()
    exception_type = models.TextField(blank=True)
    tier = models.IntegerField(null=True)
    delay_ms = models.BigIntegerField(null=True)
    parked = models.PositiveBigIntegerField()
    recovered = models.PositiveBigIntegerField()
    exhausted = models.PositiveBigIntegerField()
    wasted_ms = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.task} {self.queue} {self.tier}"


class Incident(_OfRun):
    """A burst of failures."""

    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    tasks = models.JSONField(default=list)
    exceptions = models.JSONField(default=list)
    peak_per_minute = models.PositiveBigIntegerField()
    tasks_touched = models.PositiveBigIntegerField()
    #: Null where none of the tasks has come to an end.
    recovered_share = models.FloatField(null=True)
    wasted_ms = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"


class LadderAdvice(_OfRun):
    """Today's ladder of a queue, or of one task in it, beside the best one that was found."""

    queue = models.TextField()
    #: Empty: the whole queue.
    task = models.TextField(blank=True)
    enough_data = models.BooleanField()
    #: Why there is no advice.
    reason = models.TextField(blank=True)
    episodes = models.PositiveBigIntegerField()
    current_ms = models.JSONField(default=list)
    advised_ms = models.JSONField(default=list)
    #: By name: ``[value, low, high]``, each of them null where it is not known.
    current = models.JSONField(default=dict)
    advised = models.JSONField(default=dict)

    def __str__(self) -> str:
        return f"{self.queue} {self.task}".strip()


class WhatIf(_OfRun):
    """What a ladder that somebody named would have done; figures as in `LadderAdvice`."""

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
    """What happened in one hour, all queues and tasks together."""

    hour = models.DateTimeField()
    first_attempts = models.PositiveBigIntegerField()
    failures = models.PositiveBigIntegerField()
    recovered = models.PositiveBigIntegerField()
    exhausted = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:00}"
