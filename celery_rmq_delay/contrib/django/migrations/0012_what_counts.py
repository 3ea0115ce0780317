from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0011_incidents"),
    ]

    operations = [
        migrations.AddField(
            model_name="ladderadvice",
            name="model",
            field=models.CharField(blank=True, default="", max_length=8),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="by_attempts_high",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="tieroutcome",
            name="independent",
            field=models.FloatField(null=True),
        ),
    ]
