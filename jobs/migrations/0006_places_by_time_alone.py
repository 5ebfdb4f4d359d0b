from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0005_estimates_and_what_ifs")]
    operations = [migrations.RemoveField(model_name="job", name="turn")]
