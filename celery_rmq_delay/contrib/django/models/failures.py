"""Failure groups, counters, and the values of the filters."""

from django.db import models


class FailureGroup(models.Model):
    """Failures with one exception type, one normalised message and one application frame."""

    fingerprint = models.CharField("fingerprint", max_length=64, unique=True)
    exception_type = models.CharField("error", max_length=255)
    #: The message with numbers, ids and quoted text replaced.
    message = models.TextField("message", blank=True)
    frame = models.CharField("top application frame", max_length=255, blank=True)
    first_seen = models.DateTimeField("first seen")
    last_seen = models.DateTimeField("last seen")
    note = models.TextField("note", blank=True)
    #: A muted group sends no alerts.
    muted = models.BooleanField("muted", default=False)

    class Meta:
        verbose_name = "failure group"
        verbose_name_plural = "failure groups"
        default_permissions = ("view", "change")
        indexes = [models.Index(fields=["-last_seen"], name="rmq_delay_group_seen")]

    def __str__(self) -> str:
        return f"{self.exception_type}: {self.message}"[:120]


class Tally(models.Model):
    """Counts of ten minutes for tiles and charts, which do not depend on the rows that are kept.

    ``slot`` is the start of the ten minutes, ``fingerprint`` the failure group's (empty for successes).
    """

    slot = models.DateTimeField()
    queue = models.CharField(max_length=255)
    name = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, blank=True)
    parked = models.PositiveBigIntegerField(default=0)
    recovered = models.PositiveBigIntegerField(default=0)
    exhausted = models.PositiveBigIntegerField(default=0)
    #: First attempts that succeeded, from the workers' rollups.
    succeeded = models.PositiveBigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["slot", "queue", "name", "fingerprint"], name="rmq_delay_tally_once")
        ]
        indexes = [models.Index(fields=["fingerprint", "slot"], name="rmq_delay_tally_group")]

    def __str__(self) -> str:
        return f"{self.slot:%Y-%m-%d %H:%M} {self.queue} {self.name}"


class CountedRollup(models.Model):
    """A workers' rollup that was counted: a redelivery is not counted again. Kept for a day."""

    event_id = models.CharField(max_length=64, primary_key=True)
    counted_at = models.DateTimeField(db_index=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.event_id


class LookupValue(models.Model):
    """A known queue, task, error class or worker: a choice of the filters, without a scan of the large tables."""

    class Kind(models.TextChoices):
        """The kinds of value."""

        QUEUE = "queue", "queue"
        TASK = "task", "task"
        ERROR = "error", "error"
        WORKER = "worker", "worker"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    value = models.CharField(max_length=255)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["kind", "value"], name="rmq_delay_lookup_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"
