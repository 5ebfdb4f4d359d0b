from django.db import migrations
from django.db.models import F


def fill(apps, schema_editor):
    apps.get_model("jobs", "Allocation").objects.filter(gpu_milli=0).update(gpu_milli=F("gpus") * 1000)


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_rules_and_shares")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
