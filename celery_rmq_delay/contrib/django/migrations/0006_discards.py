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
    ]
