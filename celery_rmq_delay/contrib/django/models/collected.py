"""What collectors write besides tasks: failure groups, counters, values of the filters, status, unreadable messages."""

from django.db import models


class FailureGroup(models.Model):
    """Failures with one exception type, one normalised message and one application frame."""

    fingerprint = models.CharField(max_length=64, unique=True)
    exception_type = models.CharField("error", max_length=255)
    #: The message with numbers, ids and quoted text replaced.
    message = models.TextField(blank=True)
    frame = models.CharField("top application frame", max_length=255, blank=True)
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()
    note = models.TextField(blank=True)
    #: A muted group sends no alerts.
    muted = models.BooleanField(default=False)

    class Meta:
        default_permissions = ("view", "change")
        indexes = [models.Index(fields=["-last_seen"], name="rmq_delay_group_seen")]

    def __str__(self) -> str:
        return f"{self.exception_type}: {self.message}"[:120]


class Tally(models.Model):
    """Counts of the ten minutes from ``slot`` on, for tiles and charts; successes have no ``fingerprint``."""

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


class CountedRollup(models.Model):
    """A workers' rollup that was counted: a redelivery is not counted again. Kept for a day."""

    event_id = models.CharField(max_length=64, primary_key=True)
    counted_at = models.DateTimeField(db_index=True)

    class Meta:
        default_permissions = ()


class LookupValue(models.Model):
    """A known queue, task, error class or worker: a choice of the filters, without a scan of the large tables."""

    class Kind(models.TextChoices):
        QUEUE = "queue", "queue"
        TASK = "task", "task"
        ERROR = "error", "error"
        WORKER = "worker", "worker"

    kind = models.CharField(max_length=8)
    value = models.CharField(max_length=255)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["kind", "value"], name="rmq_delay_lookup_once")]


class CollectorStatus(models.Model):
    """The status of one collector process."""

    name = models.CharField("collector", max_length=255, unique=True)
    started_at = models.DateTimeField("started")
    heartbeat_at = models.DateTimeField("last heartbeat")
    events = models.PositiveBigIntegerField(default=0)
    exhausted = models.PositiveBigIntegerField("exhausted messages", default=0)
    #: How old the youngest event of the last batch was when it was written, in milliseconds.
    lag_ms = models.PositiveBigIntegerField("lag in ms", default=0)
    #: The messages in the two queues at the last count.
    waiting = models.PositiveBigIntegerField(default=0)
    #: By how many messages delay queues and table differ beyond what is in flight, and since when they do; more in the
    #: queues is positive.
    differs_by = models.BigIntegerField("difference", default=0, db_default=0)
    differs_since = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True)

    class Meta:
        verbose_name = "collector"
        verbose_name_plural = "collectors"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class UnreadableMessage(models.Model):
    """A message that the collector could not read, kept unchanged: it is not lost, and blocks no other message."""

    #: A hash of the message: a redelivered message is one row.
    digest = models.CharField(max_length=64, unique=True)
    queue = models.CharField(max_length=255)
    error = models.TextField()
    body = models.BinaryField()
    headers = models.BinaryField()
    properties = models.JSONField(default=dict)
    #: When it was received last: one that a requeue has sent back to a collector is received again.
    received_at = models.DateTimeField("received")
    #: When a requeue began that has not ended yet.
    claimed_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{len(self.body)} bytes from {self.queue}"
