
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0014_raw_segments'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', '-ended_at', '-id'], name='job_owner_ended'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', 'name', 'id'], name='job_owner_name'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', '-gpus', '-id'], name='job_owner_gpus'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['team', 'state', '-id'], name='job_team_state'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['team', '-ended_at', '-id'], name='job_team_ended'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['team', 'name', 'id'], name='job_team_name'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['team', '-gpus', '-id'], name='job_team_gpus'),
        ),
    ]
