import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_delay", "0009_open_groups"),
    ]

    operations = [
        migrations.AddField(
            model_name="ladderadvice",
            name="backtest_advised",
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="backtest_current",
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="backtest_failures",
            field=models.PositiveBigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="counted",
            field=models.PositiveBigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="learn",
            field=models.TextField(blank=True, default=""),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="lost",
            field=models.PositiveBigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="recoveries",
            field=models.PositiveBigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="ladderadvice",
            name="refused_ms",
            field=models.JSONField(default=list),
        ),
        migrations.CreateModel(
            name="ExceptionAdvice",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("position", models.PositiveIntegerField()),
                ("queue", models.TextField()),
                ("task", models.TextField()),
                ("exception_type", models.TextField()),
                (
                    "kind",
                    models.CharField(choices=[("give_up", "give up"), ("fewer_tiers", "fewer tiers")], max_length=11),
                ),
                ("failures", models.PositiveBigIntegerField()),
                ("recovered", models.PositiveBigIntegerField()),
                ("share_low", models.FloatField(null=True)),
                ("share_high", models.FloatField(null=True)),
                ("longest_s", models.FloatField(null=True)),
                ("needless_ms", models.JSONField(default=list)),
                ("retries", models.PositiveBigIntegerField(null=True)),
                ("wasted_ms", models.PositiveBigIntegerField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="%(class)ss",
                        to="rmq_delay.insightrun",
                    ),
                ),
            ],
            options={
                "ordering": ("position",),
                "abstract": False,
                "default_permissions": (),
            },
        ),
    ]
