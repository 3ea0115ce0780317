from typing import Any

from django.conf import settings
from django.db import migrations, models

from ..models import audit, search, tasks


def create_search(apps: Any, schema_editor: Any) -> None:
    """Create the index of messages and arguments."""
    search.create(schema_editor.connection)


def drop_search(apps: Any, schema_editor: Any) -> None:
    """Drop the index."""
    search.drop(schema_editor.connection)


class Migration(migrations.Migration):
    initial = True

    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="CollectorStatus",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=255, unique=True, verbose_name="collector")),
                ("started_at", models.DateTimeField(verbose_name="started")),
                ("heartbeat_at", models.DateTimeField(verbose_name="last heartbeat")),
                ("events", models.PositiveBigIntegerField(default=0)),
                ("exhausted", models.PositiveBigIntegerField(default=0, verbose_name="exhausted messages")),
                ("lag_ms", models.PositiveBigIntegerField(default=0, verbose_name="lag in ms")),
                ("waiting", models.PositiveBigIntegerField(default=0)),
                ("differs_by", models.BigIntegerField(db_default=0, default=0, verbose_name="difference")),
                ("differs_since", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.TextField(blank=True)),
            ],
            options={
                "verbose_name": "collector",
                "verbose_name_plural": "collectors",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="CountedRollup",
            fields=[
                ("event_id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("counted_at", models.DateTimeField(db_index=True)),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="FailureGroup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("fingerprint", models.CharField(max_length=64, unique=True)),
                ("exception_type", models.CharField(max_length=255, verbose_name="error")),
                ("message", models.TextField(blank=True)),
                ("frame", models.CharField(blank=True, max_length=255, verbose_name="top application frame")),
                ("first_seen", models.DateTimeField()),
                ("last_seen", models.DateTimeField()),
                ("note", models.TextField(blank=True)),
                ("muted", models.BooleanField(default=False)),
            ],
            options={
                "default_permissions": ("view", "change"),
                "indexes": [models.Index(fields=["-last_seen"], name="rmq_delay_group_seen")],
            },
        ),
        migrations.CreateModel(
            name="InsightRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("input_url", models.TextField(blank=True, verbose_name="history")),
                ("output_url", models.TextField(verbose_name="output")),
                ("first_day", models.DateField()),
                ("last_day", models.DateField()),
                ("since", models.DateField(verbose_name="tiers and incidents since")),
                ("loaded_at", models.DateTimeField(verbose_name="loaded")),
                ("report", models.JSONField(blank=True, default=dict)),
                ("left_out", models.JSONField(blank=True, default=dict)),
                ("rows", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "verbose_name": "insights of a run",
                "verbose_name_plural": "insights",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="LookupValue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=8)),
                ("value", models.CharField(max_length=255)),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("kind", "value"), name="rmq_delay_lookup_once")],
            },
        ),
        migrations.CreateModel(
            name="Operation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=audit.kinds, max_length=8, verbose_name="what")),
                ("state", models.CharField(choices=audit.states, default="PENDING", max_length=10)),
                (
                    "user",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=models.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                ("actor", models.CharField(max_length=150, verbose_name="by")),
                ("reason", models.TextField(blank=True, verbose_name="why")),
                ("requested", models.PositiveIntegerField(default=0)),
                ("ok", models.PositiveIntegerField(default=0, verbose_name="done")),
                ("skipped", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("unknown", models.PositiveIntegerField(default=0, verbose_name="outcome unknown")),
                ("canary", models.PositiveIntegerField(default=0, verbose_name="canaries")),
                ("rate", models.PositiveIntegerField(blank=True, null=True, verbose_name="per minute")),
                ("not_before", models.DateTimeField(blank=True, null=True)),
                (
                    "follows",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="followers",
                        to="rmq_delay.operation",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="requested")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="started")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished")),
                ("heartbeat_at", models.DateTimeField(blank=True, null=True)),
                ("runner", models.CharField(blank=True, max_length=255)),
                ("generation", models.PositiveIntegerField(default=0)),
                ("message", models.TextField(blank=True, verbose_name="result")),
                ("details", models.JSONField(blank=True, default=dict)),
            ],
            options={
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["state", "created_at"], name="rmq_delay_operation_state")],
            },
        ),
        migrations.CreateModel(
            name="OperatorStatus",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=255, unique=True)),
                ("started_at", models.DateTimeField()),
                ("heartbeat_at", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("slot", models.DateTimeField()),
                ("queue", models.CharField(max_length=255)),
                ("name", models.CharField(max_length=255)),
                ("fingerprint", models.CharField(blank=True, max_length=64)),
                ("parked", models.PositiveBigIntegerField(default=0)),
                ("recovered", models.PositiveBigIntegerField(default=0)),
                ("exhausted", models.PositiveBigIntegerField(default=0)),
                ("succeeded", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["fingerprint", "slot"], name="rmq_delay_tally_group")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("slot", "queue", "name", "fingerprint"), name="rmq_delay_tally_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="UnreadableMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("queue", models.CharField(max_length=255)),
                ("error", models.TextField()),
                ("body", models.BinaryField()),
                ("headers", models.BinaryField()),
                ("properties", models.JSONField(default=dict)),
                ("received_at", models.DateTimeField(verbose_name="received")),
                ("claimed_at", models.DateTimeField(null=True)),
            ],
            options={"default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.CharField(max_length=255)),
                ("life", models.CharField(db_default="first", default="first", max_length=32)),
                ("root_id", models.CharField(blank=True, max_length=255)),
                ("parent_id", models.CharField(blank=True, max_length=255)),
                ("canvas_id", models.CharField(blank=True, max_length=255, verbose_name="group id")),
                ("name", models.CharField(max_length=255, verbose_name="task")),
                ("state", models.CharField(choices=tasks.states, max_length=10)),
                ("changed_at", models.DateTimeField()),
                ("queue", models.CharField(max_length=255)),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("worker", models.CharField(blank=True, max_length=255)),
                ("generation", models.PositiveIntegerField(default=0, verbose_name="requeued")),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("max_retries", models.PositiveIntegerField(blank=True, null=True, verbose_name="most retries")),
                ("crashes", models.PositiveIntegerField(default=0)),
                ("tier", models.PositiveIntegerField(blank=True, null=True)),
                ("delay_ms", models.BigIntegerField(blank=True, null=True, verbose_name="delay in ms")),
                ("delay_queue", models.CharField(blank=True, max_length=255)),
                ("ladder_ms", models.JSONField(blank=True, default=list, verbose_name="ladder in ms")),
                ("parked_at", models.DateTimeField(blank=True, null=True)),
                ("due_at", models.DateTimeField(blank=True, null=True, verbose_name="next retry")),
                ("first_failed_at", models.DateTimeField(blank=True, null=True, verbose_name="first failed")),
                ("exhausted_at", models.DateTimeField(blank=True, null=True)),
                ("recovered_at", models.DateTimeField(blank=True, null=True)),
                (
                    "ran_after_discard_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="ran after it was discarded"),
                ),
                ("exception_type", models.CharField(blank=True, max_length=255, verbose_name="error")),
                ("exception_message", models.TextField(blank=True, verbose_name="error message")),
                ("reason", models.CharField(blank=True, max_length=32, verbose_name="why")),
                (
                    "failure_group",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="records",
                        to="rmq_delay.failuregroup",
                    ),
                ),
                ("args_preview", models.TextField(blank=True, verbose_name="arguments")),
                ("kwargs_preview", models.TextField(blank=True, verbose_name="keyword arguments")),
                ("call_digest", models.CharField(blank=True, db_default="", default="", editable=False, max_length=64)),
                (
                    "operation",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=models.SET_NULL,
                        related_name="records",
                        to="rmq_delay.operation",
                    ),
                ),
            ],
            options={
                "verbose_name": "retried task",
                "verbose_name_plural": "retried tasks",
                "permissions": [
                    ("requeue_taskrecord", "Can requeue tasks and run parked ones now"),
                    ("discard_taskrecord", "Can discard tasks and restore them"),
                    ("edit_payload_taskrecord", "Can edit arguments and requeue"),
                    ("view_payload_taskrecord", "Can see arguments and errors unredacted"),
                ],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["state", "due_at"], name="rmq_delay_state_due"),
                    models.Index(fields=["state", "-exhausted_at", "-id"], name="rmq_delay_state_exhausted"),
                    models.Index(fields=["state", "queue", "-exhausted_at", "name"], name="rmq_delay_state_queue"),
                    models.Index(
                        fields=["state", "name", "-exhausted_at", "exception_type"], name="rmq_delay_state_name"
                    ),
                    models.Index(
                        fields=["state", "exception_type", "-exhausted_at", "queue"], name="rmq_delay_state_error"
                    ),
                    models.Index(fields=["state", "worker", "-exhausted_at"], name="rmq_delay_state_worker"),
                    models.Index(fields=["failure_group", "state", "-exhausted_at"], name="rmq_delay_group_state"),
                    models.Index(
                        condition=models.Q(("state", "EXHAUSTED")),
                        fields=["failure_group"],
                        name="rmq_delay_group_open",
                    ),
                    models.Index(fields=["root_id"], name="rmq_delay_root"),
                    models.Index(fields=["parent_id"], name="rmq_delay_parent"),
                    models.Index(fields=["canvas_id"], name="rmq_delay_canvas"),
                    models.Index(fields=["state", "changed_at"], name="rmq_delay_state_changed"),
                    models.Index(fields=["-changed_at", "-id"], name="rmq_delay_changed"),
                    models.Index(fields=["state", "attempt"], name="rmq_delay_state_attempt"),
                    models.Index(
                        condition=models.Q(("generation__gt", 0)),
                        fields=["state", "generation"],
                        name="rmq_delay_requeued",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("task_id", "life"), name="rmq_delay_life_once")],
            },
        ),
        migrations.CreateModel(
            name="ExhaustedTask",
            fields=[],
            options={"proxy": True, "default_permissions": ("view",)},
            bases=("rmq_delay.taskrecord",),
        ),
        migrations.CreateModel(
            name="ParkedTask",
            fields=[],
            options={"proxy": True, "default_permissions": ("view",)},
            bases=("rmq_delay.taskrecord",),
        ),
        migrations.CreateModel(
            name="Payload",
            fields=[
                (
                    "record",
                    models.OneToOneField(
                        on_delete=models.CASCADE,
                        primary_key=True,
                        related_name="payload",
                        serialize=False,
                        to="rmq_delay.taskrecord",
                    ),
                ),
                ("generation", models.PositiveIntegerField(default=0)),
                ("body", models.BinaryField()),
                ("headers", models.BinaryField()),
                ("properties", models.JSONField(default=dict)),
                ("stored_at", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="OperationItem",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "operation",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="items", to="rmq_delay.operation"),
                ),
                (
                    "record",
                    models.ForeignKey(
                        on_delete=models.CASCADE, related_name="operation_items", to="rmq_delay.taskrecord"
                    ),
                ),
                ("generation", models.PositiveIntegerField(default=0)),
                ("position", models.PositiveIntegerField(default=0)),
                ("is_canary", models.BooleanField(default=False)),
                ("outcome", models.CharField(choices=audit.outcomes, default="PENDING", max_length=9)),
                ("detail", models.CharField(blank=True, max_length=255)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["operation", "outcome", "position"], name="rmq_delay_item_next")],
                "constraints": [models.UniqueConstraint(fields=("operation", "record"), name="rmq_delay_item_once")],
            },
        ),
        migrations.CreateModel(
            name="CollectedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64)),
                (
                    "record",
                    models.ForeignKey(
                        null=True, on_delete=models.CASCADE, related_name="collected", to="rmq_delay.taskrecord"
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("digest",), name="rmq_delay_collected_once")],
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("event_id", models.CharField(max_length=64)),
                (
                    "record",
                    models.ForeignKey(on_delete=models.CASCADE, related_name="attempts", to="rmq_delay.taskrecord"),
                ),
                ("kind", models.CharField(max_length=12)),
                ("generation", models.PositiveIntegerField(default=0)),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("occurred_at", models.DateTimeField()),
                ("runtime_ms", models.BigIntegerField(null=True)),
                ("worker", models.CharField(blank=True, max_length=255)),
                ("tier", models.PositiveIntegerField(null=True)),
                ("delay_ms", models.BigIntegerField(null=True)),
                ("due_at", models.DateTimeField(null=True)),
                ("exception_type", models.CharField(blank=True, max_length=255)),
                ("exception_message", models.TextField(blank=True)),
                ("frame", models.CharField(blank=True, max_length=255)),
                ("traceback", models.TextField(blank=True)),
                ("reason", models.CharField(blank=True, max_length=32)),
            ],
            options={
                "ordering": ["generation", "attempt", "occurred_at", "id"],
                "default_permissions": (),
                "indexes": [models.Index(fields=["occurred_at"], name="rmq_delay_attempt_time")],
                "constraints": [models.UniqueConstraint(fields=("event_id",), name="rmq_delay_attempt_once")],
            },
        ),
        migrations.RunPython(create_search, drop_search),
    ]
