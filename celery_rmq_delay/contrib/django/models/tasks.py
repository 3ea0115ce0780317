"""Retried tasks, their attempts, and their stored messages."""

from __future__ import annotations

from typing import Any

from django.db import models

from ....headers import FIRST_LIFE, MAX_LIFE


class TaskState(models.TextChoices):
    """The state of a retried task, from the events that were collected."""

    PARKED = "PARKED", "Parked"
    #: Released before it was due, or due and without an event since.
    RUNNING = "RUNNING", "Running"
    RECOVERED = "RECOVERED", "Recovered"
    EXHAUSTED = "EXHAUSTED", "Exhausted"
    #: An operation has claimed it and is publishing it.
    REQUEUING = "REQUEUING", "Requeuing"
    REQUEUED = "REQUEUED", "Requeued"
    DISCARDED = "DISCARDED", "Discarded"
    #: Published without an answer: it may be in its queue or not. An operator has to decide.
    UNKNOWN = "UNKNOWN", "Outcome unknown"


def states() -> list[tuple[str, Any]]:
    """Return the values and labels of `TaskState`: a new one needs no migration."""
    return TaskState.choices


class TaskRecord(models.Model):
    """One retried task in any state. Times are in UTC, delays in milliseconds."""

    #: Ids may be used again: a message that differs from the stored one gets a row of its own.
    task_id = models.CharField(max_length=255)
    #: Which row of its id this is: `FIRST_LIFE`, or the digest of the row's first message.
    life = models.CharField(max_length=MAX_LIFE, default=FIRST_LIFE, db_default=FIRST_LIFE)
    root_id = models.CharField(max_length=255, blank=True)
    parent_id = models.CharField(max_length=255, blank=True)
    #: The id of Celery's group, where the task is part of one.
    canvas_id = models.CharField("group id", max_length=255, blank=True)
    name = models.CharField("task", max_length=255)
    state = models.CharField(max_length=10, choices=states)
    #: When `state` last changed.
    changed_at = models.DateTimeField()

    queue = models.CharField(max_length=255)
    exchange = models.CharField(max_length=255, blank=True)
    routing_key = models.CharField(max_length=255, blank=True)
    worker = models.CharField(max_length=255, blank=True)

    #: How often it was requeued by hand: each requeue has all its retries again.
    generation = models.PositiveIntegerField("requeued", default=0)
    #: The last attempt of this generation; 0 is the first.
    attempt = models.PositiveIntegerField(default=0)
    #: The retries that its ladder allows; None is without a limit.
    max_retries = models.PositiveIntegerField("most retries", null=True, blank=True)
    crashes = models.PositiveIntegerField(default=0)

    tier = models.PositiveIntegerField(null=True, blank=True)
    delay_ms = models.BigIntegerField("delay in ms", null=True, blank=True)
    #: The delay queue that it waits in; empty where its delay is exact, or the queue is unknown.
    delay_queue = models.CharField(max_length=255, blank=True)
    ladder_ms = models.JSONField("ladder in ms", default=list, blank=True)
    parked_at = models.DateTimeField(null=True, blank=True)
    due_at = models.DateTimeField("next retry", null=True, blank=True)
    first_failed_at = models.DateTimeField("first failed", null=True, blank=True)
    exhausted_at = models.DateTimeField(null=True, blank=True)
    recovered_at = models.DateTimeField(null=True, blank=True)
    #: When it ran although a user had discarded it: its message came back, as after a crash of the broker.
    ran_after_discard_at = models.DateTimeField("ran after it was discarded", null=True, blank=True)

    exception_type = models.CharField("error", max_length=255, blank=True)
    exception_message = models.TextField("error message", blank=True)
    reason = models.CharField("why", max_length=32, blank=True)
    failure_group = models.ForeignKey(
        "rmq_delay.FailureGroup", models.SET_NULL, null=True, blank=True, db_index=False, related_name="records"
    )
    args_preview = models.TextField("arguments", blank=True)
    kwargs_preview = models.TextField("keyword arguments", blank=True)
    #: The digest of the stored message's call; empty where no message is stored. Other messages and events of the same
    #: id do not change such a row.
    call_digest = models.CharField(max_length=64, default="", db_default="", blank=True, editable=False)
    #: The operation that is processing it while it is REQUEUING, or that last changed it.
    operation = models.ForeignKey("rmq_delay.Operation", models.SET_NULL, null=True, blank=True, related_name="records")

    class Meta:
        verbose_name = "retried task"
        verbose_name_plural = "retried tasks"
        default_permissions = ("view",)
        permissions = [
            ("requeue_taskrecord", "Can requeue tasks and run parked ones now"),
            ("discard_taskrecord", "Can discard tasks and restore them"),
            ("edit_payload_taskrecord", "Can edit arguments and requeue"),
            ("view_payload_taskrecord", "Can see arguments and errors unredacted"),
        ]
        constraints = [models.UniqueConstraint(fields=["task_id", "life"], name="rmq_delay_life_once")]
        indexes = [
            models.Index(fields=["state", "due_at"], name="rmq_delay_state_due"),
            models.Index(fields=["state", "-exhausted_at", "-id"], name="rmq_delay_state_exhausted"),
            # Two filters are counted within one index. A third text could be more than PostgreSQL's 2,704 bytes.
            models.Index(fields=["state", "queue", "-exhausted_at", "name"], name="rmq_delay_state_queue"),
            models.Index(fields=["state", "name", "-exhausted_at", "exception_type"], name="rmq_delay_state_name"),
            models.Index(fields=["state", "exception_type", "-exhausted_at", "queue"], name="rmq_delay_state_error"),
            models.Index(fields=["state", "worker", "-exhausted_at"], name="rmq_delay_state_worker"),
            models.Index(fields=["failure_group", "state", "-exhausted_at"], name="rmq_delay_group_state"),
            models.Index(
                fields=["failure_group"], condition=models.Q(state=TaskState.EXHAUSTED), name="rmq_delay_group_open"
            ),
            models.Index(fields=["root_id"], name="rmq_delay_root"),
            models.Index(fields=["parent_id"], name="rmq_delay_parent"),
            models.Index(fields=["canvas_id"], name="rmq_delay_canvas"),
            models.Index(fields=["state", "changed_at"], name="rmq_delay_state_changed"),
            models.Index(fields=["-changed_at", "-id"], name="rmq_delay_changed"),
            models.Index(fields=["state", "attempt"], name="rmq_delay_state_attempt"),
            models.Index(
                fields=["state", "generation"], condition=models.Q(generation__gt=0), name="rmq_delay_requeued"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name}[{self.task_id}]"


class ParkedTask(TaskRecord):
    """Parked tasks: a list in the admin with its own permissions."""

    class Meta:
        proxy = True
        default_permissions = ("view",)


class ExhaustedTask(TaskRecord):
    """Exhausted tasks: a list in the admin with its own permissions."""

    class Meta:
        proxy = True
        default_permissions = ("view",)


class Payload(models.Model):
    """A stored message, which a requeue publishes unchanged."""

    record = models.OneToOneField(TaskRecord, models.CASCADE, primary_key=True, related_name="payload")
    #: The generation of the message; after a requeue with unknown outcome, that of the published one.
    generation = models.PositiveIntegerField(default=0)
    body = models.BinaryField()
    #: The application headers as an AMQP field table (`amqp.serialization`), unchanged.
    headers = models.BinaryField()
    #: The other AMQP properties: content_type, content_encoding, correlation_id, reply_to, priority and so on.
    properties = models.JSONField(default=dict)
    stored_at = models.DateTimeField()

    class Meta:
        default_permissions = ()


class CollectedMessage(models.Model):
    """A collected message of the exhausted queue, and its row: a redelivery is recognised by its digest."""

    digest = models.CharField(max_length=64)
    #: Null only within the collector's transaction. Deleted together with the record.
    record = models.ForeignKey(TaskRecord, models.CASCADE, null=True, related_name="collected")

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["digest"], name="rmq_delay_collected_once")]


class Attempt(models.Model):
    """One attempt and how it ended; rows are never changed. ``event_id`` makes a repeated event one row."""

    event_id = models.CharField(max_length=64)
    record = models.ForeignKey(TaskRecord, models.CASCADE, related_name="attempts")
    #: parked, forwarded, recovered, exhausted; discarded and requeued are operations.
    kind = models.CharField(max_length=12)
    generation = models.PositiveIntegerField(default=0)
    attempt = models.PositiveIntegerField(default=0)
    occurred_at = models.DateTimeField()
    runtime_ms = models.BigIntegerField(null=True)
    worker = models.CharField(max_length=255, blank=True)
    tier = models.PositiveIntegerField(null=True)
    delay_ms = models.BigIntegerField(null=True)
    due_at = models.DateTimeField(null=True)
    exception_type = models.CharField(max_length=255, blank=True)
    exception_message = models.TextField(blank=True)
    frame = models.CharField(max_length=255, blank=True)
    traceback = models.TextField(blank=True)
    reason = models.CharField(max_length=32, blank=True)

    class Meta:
        default_permissions = ()
        ordering = ["generation", "attempt", "occurred_at", "id"]
        constraints = [models.UniqueConstraint(fields=["event_id"], name="rmq_delay_attempt_once")]
        indexes = [models.Index(fields=["occurred_at"], name="rmq_delay_attempt_time")]

    def __str__(self) -> str:
        return f"{self.kind} {self.generation}/{self.attempt}"
