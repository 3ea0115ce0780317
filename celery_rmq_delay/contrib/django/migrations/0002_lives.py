import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="CollectedMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.RemoveConstraint(
            model_name="taskrecord",
            name="rmq_delay_task_once",
        ),
        migrations.AddField(
            model_name="taskrecord",
            name="call_digest",
            field=models.CharField(blank=True, db_default="", default="", editable=False, max_length=64),
        ),
        migrations.AddField(
            model_name="taskrecord",
            name="life",
            field=models.CharField(db_default="first", default="first", max_length=32, verbose_name="life"),
        ),
        migrations.AddConstraint(
            model_name="taskrecord",
            constraint=models.UniqueConstraint(fields=("task_id", "life"), name="rmq_delay_life_once"),
        ),
        migrations.AddField(
            model_name="collectedmessage",
            name="record",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="collected",
                to="rmq_delay.taskrecord",
            ),
        ),
        migrations.AddConstraint(
            model_name="collectedmessage",
            constraint=models.UniqueConstraint(fields=("digest",), name="rmq_delay_collected_once"),
        ),
    ]
