import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0015_orders_of_lists"),
    ]

    operations = [
        migrations.AddField(
            model_name="cluster",
            name="cpu_weight",
            field=models.FloatField(
                default=0,
                help_text="In GPUs; 0.0625 where a host has 16 CPUs for each GPU. 0: CPUs do not count.",
                validators=[
                    django.core.validators.MinValueValidator(0),
                    django.core.validators.MaxValueValidator(1000),
                ],
                verbose_name="weight of a CPU",
            ),
        ),
        migrations.AddField(
            model_name="cluster",
            name="gpu_weights",
            field=models.JSONField(blank=True, default=dict, verbose_name="weight of a GPU by model"),
        ),
        migrations.AddField(
            model_name="cluster",
            name="memory_weight",
            field=models.FloatField(
                default=0,
                help_text="In GPUs. Of GPUs, CPUs and memory, what counts most is what a job is charged. 0: it does not.",
                validators=[
                    django.core.validators.MinValueValidator(0),
                    django.core.validators.MaxValueValidator(1000),
                ],
                verbose_name="weight of a GiB of memory",
            ),
        ),
        migrations.AddField(
            model_name="usageday",
            name="charged_seconds",
            field=models.FloatField(null=True),
        ),
    ]
