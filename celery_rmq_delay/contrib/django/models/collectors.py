"""The status of collectors, and messages that they could not read."""

from django.db import models


class CollectorStatus(models.Model):
    """The status of one collector process."""

    name = models.CharField("collector", max_length=255, unique=True)
    started_at = models.DateTimeField("started")
    heartbeat_at = models.DateTimeField("last heartbeat")
    events = models.PositiveBigIntegerField("events", default=0)
    exhausted = models.PositiveBigIntegerField("exhausted messages", default=0)
    #: How old the youngest event of the last batch was when it was written, in milliseconds.
    lag_ms = models.PositiveBigIntegerField("lag in ms", default=0)
    #: The messages in the two queues at the last count.
    waiting = models.PositiveBigIntegerField("waiting", default=0)
    #: By how many messages delay queues and table differ beyond what is in flight, and since when they do; more in the
    #: queues is positive.
    differs_by = models.BigIntegerField("difference", default=0, db_default=0)
    differs_since = models.DateTimeField("differs since", null=True, blank=True)
    last_error = models.TextField("last error", blank=True)

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
    queue = models.CharField("queue", max_length=255)
    error = models.TextField("error")
    body = models.BinaryField()
    headers = models.BinaryField()
    properties = models.JSONField(default=dict)
    #: When it was received last: one that a requeue has sent back to a collector is received again.
    received_at = models.DateTimeField("received")
    #: When a requeue began that has not ended yet.
    claimed_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "unreadable message"
        verbose_name_plural = "unreadable messages"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{len(self.body)} bytes from {self.queue}"
