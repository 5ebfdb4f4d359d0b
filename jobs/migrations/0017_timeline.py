
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('gpus', '0005_minutes_of_containers'),
        ('jobs', '0016_weights_of_fair_share'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='kept_from',
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='kept_node',
            field=models.ForeignKey(blank=True, db_index=False, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='gpus.node'),
        ),
        migrations.CreateModel(
            name='HostDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('gpu_seconds', models.FloatField()),
                ('node', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='gpus.node')),
            ],
            options={
                'verbose_name': 'day of a host',
                'verbose_name_plural': 'days of hosts',
                'constraints': [models.UniqueConstraint(fields=('day', 'node'), name='one_host_per_day')],
            },
        ),
    ]
