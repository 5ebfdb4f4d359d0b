"""New versions beside old ones: what migrations may do, and what is of a version that this one does not know."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
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


@pytest.mark.django_db
def test_a_process_of_this_version_finds_its_migrations_applied() -> None:
    readiness.await_migrations()
    assert readiness.missing_migrations() == []


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
