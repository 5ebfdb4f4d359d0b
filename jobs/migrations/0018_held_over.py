from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0017_timeline'),
    ]

    operations = [
        migrations.AddField(
            model_name='hostday',
            name='held_over',
            field=models.JSONField(null=True),
        ),
        # Without it days are no use to the timeline; the scheduler makes them again from the allocations.
        migrations.RunSQL('DELETE FROM jobs_hostday', migrations.RunSQL.noop),
        migrations.AddIndex(
            model_name='allocation',
            index=models.Index(fields=['created_at'], name='allocation_created'),
        ),
    ]
