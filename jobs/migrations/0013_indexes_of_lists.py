
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('gpus', '0005_minutes_of_containers'),
        ('jobs', '0012_output_and_packing'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name='allocation',
            index=models.Index(fields=['released_at', 'created_at'], name='allocation_released'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['end_reason', '-ended_at', '-id'], name='job_end_reason'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['name', 'id'], name='job_name'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['-gpus', '-id'], name='job_gpus'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(fields=['-ended_at', '-id'], name='run_ended'),
        ),
    ]
