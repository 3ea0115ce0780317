"""Operations: the audit log, the queue of background runs, and the processes that run them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from .tasks import TaskRecord


def kinds() -> list[tuple[str, Any]]:
    """Return the values and labels of `Operation.Kind`: a new one needs no migration."""
    return Operation.Kind.choices


def states() -> list[tuple[str, Any]]:
    """Return those of `Operation.State`."""
    return Operation.State.choices


def outcomes() -> list[tuple[str, Any]]:
    """Return those of `OperationItem.Outcome`."""
    return OperationItem.Outcome.choices


class _Confirmed(models.Manager["Operation"]):
    """The operations without drafts: no list, count, metric or runner sees one."""

    def get_queryset(self) -> models.QuerySet[Operation]:
        """Return the operations that were confirmed."""
        return super().get_queryset().exclude(state=Operation.State.DRAFT)


class Operation(models.Model):
    """One act on a frozen selection of tasks, with actor, reason and result."""

    class Kind(models.TextChoices):
        RUN_NOW = "run_now", "Run now"
        REQUEUE = "requeue", "Requeue"
        EDIT = "edit", "Edit and requeue"
        DISCARD = "discard", "Discard"
        RESTORE = "restore", "Restore"
        REVEAL = "reveal", "Reveal"
        EXPORT = "export", "Export"
        MUTE = "mute", "Mute or note"

    class State(models.TextChoices):
        #: The frozen selection of a confirmation page; only `with_drafts` finds it.
        DRAFT = "DRAFT", "Not confirmed"
        PENDING = "PENDING", "Waiting to run"
        RUNNING = "RUNNING", "Running"
        #: The canaries are sent; the rest waits for their outcome.
        CANARY = "CANARY", "Watching the canaries"
        CANCELLING = "CANCELLING", "Being cancelled"
        CANCELLED = "CANCELLED", "Cancelled"
        DONE = "DONE", "Done"
        FAILED = "FAILED", "Stopped by an error"

    kind = models.CharField("what", max_length=8, choices=kinds)
    state = models.CharField(max_length=10, choices=states, default=State.PENDING)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    #: The name of the user, kept when the account is deleted; for a command, the system user.
    actor = models.CharField("by", max_length=150)
    reason = models.TextField("why", blank=True)
    #: The number of selected tasks.
    requested = models.PositiveIntegerField(default=0)
    ok = models.PositiveIntegerField("done", default=0)
    skipped = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    unknown = models.PositiveIntegerField("outcome unknown", default=0)
    #: The number of tasks to send first; the rest follows when all of them have recovered.
    canary = models.PositiveIntegerField("canaries", default=0)
    #: The most tasks per minute; None is as fast as the broker confirms.
    rate = models.PositiveIntegerField("per minute", null=True, blank=True)
    #: It does not start before this time; None starts it at once.
    not_before = models.DateTimeField(null=True, blank=True)
    #: The operation whose tasks this one continues with, such as those that it has not sent.
    follows = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="followers")
    created_at = models.DateTimeField("requested", auto_now_add=True)
    started_at = models.DateTimeField("started", null=True, blank=True)
    finished_at = models.DateTimeField("finished", null=True, blank=True)
    #: The last heartbeat of the runner, and its name: an operation whose runner died is taken over.
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    runner = models.CharField(max_length=255, blank=True)
    #: How often a runner has taken it: part of each write of the runner, so one that was taken over changes nothing.
    generation = models.PositiveIntegerField(default=0)
    #: The result as text, and data for the audit: the diff of an edit, the filters of a selection.
    message = models.TextField("result", blank=True)
    details = models.JSONField(default=dict, blank=True)

    objects = _Confirmed()
    with_drafts = models.Manager["Operation"]()

    class Meta:
        default_permissions = ("view",)
        indexes = [models.Index(fields=["state", "created_at"], name="rmq_delay_operation_state")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.requested} by {self.actor}"

    @property
    def is_over(self) -> bool:
        """Whether it is finished, failed or cancelled."""
        return self.state in (self.State.CANCELLED, self.State.DONE, self.State.FAILED)

    @property
    def remaining(self) -> int:
        """The number of selected tasks without an outcome."""
        return self.requested - self.ok - self.skipped - self.failed - self.unknown


class OperationItem(models.Model):
    """One task of a frozen selection, and its outcome."""

    class Outcome(models.TextChoices):
        PENDING = "PENDING", "Pending"
        OK = "OK", "Done"
        SKIPPED = "SKIPPED", "Skipped"
        FAILED = "FAILED", "Failed"
        #: An error ended the operation before the task's turn; counted in `Operation.failed`.
        UNTRIED = "UNTRIED", "Not tried"
        UNKNOWN = "UNKNOWN", "Outcome unknown"
        CANCELLED = "CANCELLED", "Cancelled"

    operation = models.ForeignKey(Operation, models.CASCADE, related_name="items")
    record = models.ForeignKey(TaskRecord, models.CASCADE, related_name="operation_items")
    #: The record's generation when the selection was frozen: a task that was requeued since is skipped.
    generation = models.PositiveIntegerField(default=0)
    position = models.PositiveIntegerField(default=0)
    is_canary = models.BooleanField(default=False)
    outcome = models.CharField(max_length=9, choices=outcomes, default=Outcome.PENDING)
    detail = models.CharField(max_length=255, blank=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["operation", "record"], name="rmq_delay_item_once")]
        indexes = [models.Index(fields=["operation", "outcome", "position"], name="rmq_delay_item_next")]

    def __str__(self) -> str:
        return f"{self.outcome} {self.record_id}"


class OperatorStatus(models.Model):
    """One process of ``rmq_delay_operate`` that runs background operations; the row is deleted when it ends."""

    name = models.CharField(max_length=255, unique=True)
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
