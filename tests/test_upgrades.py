"""New versions beside old ones: what migrations may do, and what is of a version that this one does not know."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection, migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from jobs import dispatch, elsewhere, stop, timeline, wording
from jobs.models import Run
from jobs.pump import Pump, receive, send, short_path
from jobs.states import JobState, RunState
from portal import readiness, upgrades
from portal.models import User
from tests import factories

ADD, ALTER = migrations.AddField, migrations.AlterField


def test_the_last_release_survives_all_migrations_since() -> None:
    """rq/rq#584, okpy/ok#1062: a deploy is an ordinary event, also for the processes that it replaces last."""
    assert upgrades.harmful() == []


@pytest.mark.parametrize(
    ("operation", "survived"),
    [
        (ADD("Job", "x", models.TextField(null=True)), True),
        (ADD("Job", "x", models.TextField(default="")), False),
        (ADD("Job", "x", models.TextField(default="", db_default="")), True),
        (ADD("Job", "x", models.ManyToManyField("gpus.Node")), True),
        (ALTER("Job", "name", models.CharField("label", max_length=100)), True),
        (ALTER("Job", "name", models.CharField(max_length=300, null=True)), True),
        (ALTER("Job", "name", models.CharField(max_length=50)), False),
        (ALTER("Job", "name", models.IntegerField()), False),
        (ALTER("Job", "exit_code", models.IntegerField()), False),
        (ALTER("Job", "name", models.CharField(max_length=100, unique=True)), False),
        (migrations.CreateModel("New", [("id", models.BigAutoField(primary_key=True))]), True),
        (migrations.AddIndex("Job", models.Index(fields=["name"], name="by_name")), True),
        (migrations.RemoveField("Job", "name"), False),
        (migrations.RenameField("Job", "name", "label"), False),
        (migrations.DeleteModel("Job"), False),
        (migrations.AddConstraint("Job", models.CheckConstraint(condition=models.Q(gpus__lt=9), name="few")), False),
        (migrations.RunSQL("DELETE FROM jobs_job"), False),
    ],
)
def test_a_migration_is_judged_by_what_old_code_does_to_its_tables(operation: Any, survived: bool) -> None:
    state = MigrationLoader(None).project_state()
    assert (upgrades.refusal(operation, state, "jobs") == "") is survived


# What a migration of the model's app has for operations, by its name. The last release had the first two.
LATER = {
    "0001_first": """migrations.CreateModel("Thing", [
        ("id", models.BigAutoField(primary_key=True)), ("name", models.CharField(max_length=10)),
    ])""",
    "0002_released": 'migrations.AddField("Thing", "size", models.IntegerField())',
    "0003_wider": 'migrations.AlterField("Thing", "name", models.CharField(max_length=20))',
    "0004_narrower": """
        migrations.AddField("Thing", "note", models.CharField(max_length=10, null=True)),
        migrations.AlterField("Thing", "note", models.CharField(max_length=9, null=True)),
        migrations.AlterField("Thing", "name", models.CharField(max_length=15))""",
    "0005_forgotten": """migrations.SeparateDatabaseAndState(
        state_operations=[migrations.RemoveField("Thing", "note")], database_operations=[],
    )""",
    "0006_dropped": 'migrations.RemoveField("Thing", "size")',
    "0007_known": 'migrations.RemoveField("Thing", "name")',
}  # fmt: skip


def test_each_migration_since_the_release_is_judged_by_the_tables_that_it_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """What was released is past; a reason that a person gives, and what leaves the table as it is, is enough."""
    (tmp_path / "later").mkdir()
    before = None
    for name, operations in LATER.items():
        after, survives = [("portal", before)] if before else [], "nobody reads it" if name == "0007_known" else ""
        (tmp_path / "later" / f"{name}.py").write_text(
            "from django.db import migrations, models\n\n\nclass Migration(migrations.Migration):\n"
            f"    dependencies = {after}\n    old_code_survives = {survives!r}\n    operations = [{operations}]\n"
        )
        before = name
    (tmp_path / "later" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(upgrades, "RELEASED", {"portal": "0002_released"})
    settings.MIGRATION_MODULES = {"portal": "later", "gpus": None, "jobs": None}
    assert [line.split(": ")[:2] for line in upgrades.harmful()] == [
        ["portal.0004_narrower", "Alter field note on Thing"], ["portal.0004_narrower", "Alter field name on Thing"],
        ["portal.0006_dropped", "Remove field size from Thing"],
    ]  # fmt: skip


@pytest.mark.django_db
def test_a_process_of_a_new_version_waits_for_its_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert readiness.missing_migrations() == []
    recorder, one = MigrationRecorder(connection), ("portal", "0002_names_of_fields")
    recorder.record_unapplied(*one)
    meanwhile = [lambda: None, lambda: recorder.record_applied(*one)]  # what comes of each look again
    monkeypatch.setattr(readiness, "time", SimpleNamespace(sleep=lambda _seconds: meanwhile.pop(0)()))
    readiness.await_migrations()
    assert (readiness.missing_migrations(), meanwhile) == ([], [])


@pytest.mark.django_db
def test_a_process_does_not_wait_for_a_database_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever works with it has a way of its own to wait."""

    def away(*_args: Any) -> None:
        raise OperationalError("gone")

    with connection.execute_wrapper(away):
        readiness.await_migrations()
    assert "gone" in caplog.text


@pytest.mark.django_db
def test_what_a_newer_version_wrote_stops_no_one(alice: User) -> None:
    """An end, and a wish, of kinds that this version has no name for."""
    node = factories.make_node(gpus=2)
    ended = factories.make_run(factories.make_job(alice), node)
    ended.end(RunState.RUNNING, "OF_TOMORROW", JobState.QUEUED, now=timezone.now())  # type: ignore[arg-type]
    wished = factories.make_run(factories.make_job(alice), node)
    Run.objects.filter(pk=wished.pk).update(wish="OF_TOMORROW")
    wished.refresh_from_db()
    stop.stop(wished.pk)
    wished.refresh_from_db()
    assert (wished.state, wished.wished) == ("RUNNING", None)
    assert "OF_TOMORROW" in wording.end_sentence(ended.job, ended)
    now = timezone.now()
    assert elsewhere.blamed([ended.job_id], now) == {}
    timeline.picture(alice, now - timedelta(hours=1), now + timedelta(hours=1), now)
    dispatch.run_pass()
    ended.job.refresh_from_db()
    assert ended.job.state == "PLACED"


def test_a_pump_passes_over_the_orders_of_a_newer_agent(tmp_path: Path) -> None:
    """It outlives upgrades, so the agent that it meets next may be of any version; no descriptor is left open."""
    pump = Pump(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        with short_path(tmp_path / "pump.sock") as path:
            agent.connect(path)
        pump._greet()
        assert receive(agent)[0] == {"is": "ready"}
        before = len(os.listdir("/proc/self/fd"))
        read, write = os.pipe()
        send(agent, {"do": "of tomorrow", "run": 1}, [read])
        pump._obey()
        os.close(read)
        os.close(write)
        assert len(os.listdir("/proc/self/fd")) == before
        send(agent, {"do": "forget", "run": 1, "of tomorrow": True}, [])
        pump._obey()
        assert pump._agent is not None
