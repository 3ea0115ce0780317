from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0007_search"),
    ]

    operations = [
        migrations.AddField(
            model_name="unreadablemessage",
            name="claimed_at",
            field=models.DateTimeField(null=True),
        ),
    ]
