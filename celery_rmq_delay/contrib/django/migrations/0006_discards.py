from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0005_workers"),
    ]

    operations = [
        migrations.AddField(
            model_name="taskrecord",
            name="ran_after_discard_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="ran after it was discarded"),
        ),
        migrations.AddField(
            model_name="collectorstatus",
            name="differs_by",
            field=models.BigIntegerField(db_default=0, default=0, verbose_name="difference"),
        ),
        migrations.AddField(
            model_name="collectorstatus",
            name="differs_since",
            field=models.DateTimeField(blank=True, null=True, verbose_name="differs since"),
        ),
    ]
