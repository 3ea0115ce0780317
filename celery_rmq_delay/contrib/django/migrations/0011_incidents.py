from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0010_exception_advice"),
    ]

    operations = [
        migrations.AddField(model_name="incident", name="queues", field=models.JSONField(db_default=[], default=list)),
        migrations.AddField(
            model_name="incident", name="excess", field=models.PositiveBigIntegerField(db_default=0, default=0)
        ),
        migrations.AddField(model_name="incident", name="failure_rate", field=models.FloatField(null=True)),
        migrations.AddField(model_name="incident", name="usual_rate", field=models.FloatField(null=True)),
    ]
