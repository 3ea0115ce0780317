"""The status of collectors, and messages that they could not read."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class CollectorStatus(models.Model):
    """The status of one collector process."""

    name = models.CharField(_("collector"), max_length=255, unique=True)
    started_at = models.DateTimeField(_("started"))
    heartbeat_at = models.DateTimeField(_("last heartbeat"))
    events = models.PositiveBigIntegerField(_("events"), default=0)
    exhausted = models.PositiveBigIntegerField(_("exhausted messages"), default=0)
    #: How old the youngest event of the last batch was when it was written, in milliseconds.
    lag_ms = models.PositiveBigIntegerField(_("lag in ms"), default=0)
    #: The messages in the two queues at the last count.
    waiting = models.PositiveBigIntegerField(_("waiting"), default=0)
    #: By how many messages delay queues and table differ beyond what is in flight, and since when they do; more in the
    #: queues is positive.
    differs_by = models.BigIntegerField(_("difference"), default=0, db_default=0)
    differs_since = models.DateTimeField(_("differs since"), null=True, blank=True)
    last_error = models.TextField(_("last error"), blank=True)

    class Meta:
        verbose_name = _("collector")
        verbose_name_plural = _("collectors")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class UnreadableMessage(models.Model):
    """A message that the collector could not read, kept unchanged: it is not lost, and blocks no other message."""

    #: A hash of the message: a redelivered message is one row.
    digest = models.CharField(max_length=64, unique=True)
    queue = models.CharField(_("queue"), max_length=255)
    error = models.TextField(_("error"))
    body = models.BinaryField()
    headers = models.BinaryField()
    properties = models.JSONField(default=dict)
    #: When it was received last: one that a requeue has sent back to a collector is received again.
    received_at = models.DateTimeField(_("received"))
    #: When a requeue began that has not ended yet.
    claimed_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("unreadable message")
        verbose_name_plural = _("unreadable messages")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{len(self.body)} bytes from {self.queue}"
