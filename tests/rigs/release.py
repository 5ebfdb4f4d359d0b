"""A release after this one: a copy of the product with another version, more columns and a migration that adds them."""

import shutil
from pathlib import Path

from django.db.migrations.loader import MigrationLoader

BASE_DIR = Path(__file__).resolve().parents[2]
VERSION = "99.0.0"
_PARTS = ("portal", "gpus", "jobs", "templates", "static", "locale")
_MODELS = {
    "class Run(models.Model):\n": "    tries = models.PositiveIntegerField(default=0, db_default=0)\n",
    "class Job(models.Model):\n": "    tried_on = models.CharField(max_length=64, null=True)\n",
}
_MIGRATION = """from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "{before}")]
    operations = [
        migrations.AddField("run", "tries", models.PositiveIntegerField(default=0, db_default=0)),
        migrations.AddField("job", "tried_on", models.CharField(max_length=64, null=True)),
        migrations.CreateModel("Trial", [("id", models.BigAutoField(primary_key=True)), ("text", models.TextField())]),
    ]
"""


def last_migration() -> str:
    """The newest of `jobs`, which the next release's follows."""
    ((_app, name),) = MigrationLoader(None).graph.leaf_nodes("jobs")
    return name


def make_next_release(folder: Path) -> Path:
    """The folder of its code."""
    for part in _PARTS:  # with what Python has compiled: the times of files stay
        shutil.copytree(BASE_DIR / part, folder / part, symlinks=True)
    shutil.copy2(BASE_DIR / "manage.py", folder)
    version, models = folder / "portal" / "__init__.py", folder / "jobs" / "models" / "work.py"
    head, _old, _rest = version.read_text().partition("VERSION = ")
    version.write_text(f'{head}VERSION = "{VERSION}"\n')
    text = models.read_text()
    for begin, column in _MODELS.items():
        assert text.count(begin) == 1
        text = text.replace(begin, begin + column)
    models.write_text(text)
    (folder / "jobs" / "migrations" / "9999_next.py").write_text(_MIGRATION.format(before=last_migration()))
    return folder
