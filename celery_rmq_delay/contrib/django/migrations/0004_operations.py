import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0003_kept_messages"),
    ]

    operations = [
        migrations.CreateModel(
            name="OperatorStatus",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=255, unique=True)),
                ("started_at", models.DateTimeField()),
                ("heartbeat_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="operation",
            name="follows",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="followers",
                to="rmq_delay.operation",
                verbose_name="follows",
            ),
        ),
        migrations.AddField(
            model_name="operation",
            name="not_before",
            field=models.DateTimeField(blank=True, null=True, verbose_name="not before"),
        ),
        migrations.AlterField(
            model_name="operationitem",
            name="outcome",
            field=models.CharField(
                choices=[
                    ("PENDING", "Pending"),
                    ("OK", "Done"),
                    ("SKIPPED", "Skipped"),
                    ("FAILED", "Failed"),
                    ("UNTRIED", "Not tried"),
                    ("UNKNOWN", "Outcome unknown"),
                    ("CANCELLED", "Cancelled"),
                ],
                default="PENDING",
                max_length=9,
            ),
        ),
    ]
