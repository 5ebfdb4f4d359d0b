"""Steering jobs that wait or run, from the command line."""

import json
from datetime import timedelta

from django.utils import timezone

from gpus.models import Node
from jobs import dispatch
from jobs.models import Job, Run
from jobs.states import EndReason, JobState, RunState
from portal.models import User
from tests import factories
from tests.cli.test_commands import said
from tests.rigs.shell import Shell


def host() -> Node:
    return factories.make_node("alpha", gpus=2, labels={"disk": "nvme"})


def test_submit_asks_for_shares_labels_and_what_others_may_do(shell: Shell) -> None:
    host().gpus.update(slots=4)
    words = ("submit", "-i", "a", "-m", "1g", "--json", "--label", "disk=nvme", "--preemptible", "--movable",
             "--interactive", "--signal", "SIGUSR1")  # fmt: skip
    share = Job.objects.get(pk=json.loads(said(shell.run(*words, "-g", "1", "--share", "25", "--", "true")))["id"])
    assert (share.gpu_milli, share.node_labels, share.stop_signal) == (250, ["disk=nvme"], "SIGUSR1")
    assert (share.preemptible, share.movable, share.interactive) == (True, True, True)
    elastic = Job.objects.get(
        pk=json.loads(said(shell.run(*words, "-g", "2", "--least-gpus", "1", "--", "true")))["id"]
    )
    assert (elastic.gpus, elastic.least_gpus) == (2, 1)
    assert "25% of the GPU" in said(shell.run("show", str(share.pk)))
    refused = shell.run("submit", "-i", "a", "-g", "2", "--share", "50", "--", "true")
    assert (refused.returncode, "A share is part of one GPU" in refused.stderr.decode()) == (2, True)


def test_move_extend_and_amend(shell: Shell, team_of_alice: User) -> None:
    run = factories.make_run(factories.make_job(team_of_alice), host())
    assert run.deadline is not None
    assert "It may run until" in said(shell.run("extend", str(run.job_id), "90m"))
    assert Run.objects.get(pk=run.pk).deadline == run.deadline + timedelta(minutes=90)
    waits = factories.make_job(team_of_alice, gpus=2)
    assert said(shell.run("amend", str(waits.pk), "--gpus", "1")) == f"#{waits.pk}: amended.\n"
    waits.refresh_from_db()
    assert waits.gpus == 1
    assert said(shell.run("move", str(run.job_id))) == f"#{run.job_id}: being moved.\n"
    assert Run.objects.get(pk=run.pk).wish == "REBIND"
    more = shell.run("extend", str(run.job_id), "1h")
    assert (more.returncode, "is being stopped already" in more.stderr.decode()) == (2, True)


def test_why_prints_the_command_that_helps_and_it_does(shell: Shell, team_of_alice: User) -> None:
    node = host()
    node.gpus.filter(index=1).update(model="NVIDIA L4")
    factories.make_run(factories.make_job(team_of_alice), node)
    waits = factories.make_job(team_of_alice, gpu_model="NVIDIA A100-SXM4-40GB", node_labels=["disk=nvme"])
    dispatch.run_pass()
    said_why = said(shell.run("why", str(waits.pk)))
    assert f"dockyard amend {waits.pk} --gpu-model 'NVIDIA L4'" in said_why
    words = "amend", str(waits.pk), "--gpu-model", "NVIDIA L4", "--no-labels"
    assert said(shell.run(*words)) == f"#{waits.pk}: amended.\n"
    waits.refresh_from_db()
    assert (waits.gpu_model, waits.node_labels) == ("NVIDIA L4", [])


def test_borrowed_gpus_and_jobs_that_were_put_back_are_told(shell: Shell, team_of_alice: User) -> None:
    factories.make_team("theory", guaranteed_gpus=2)
    node = host()
    lent = factories.make_run(factories.make_job(team_of_alice), node)
    back = factories.make_run(factories.make_job(team_of_alice), node)
    assert back.advance(RunState.RUNNING, RunState.STOPPING)
    assert back.end(RunState.STOPPING, EndReason.PREEMPTED, JobState.QUEUED, now=timezone.now())
    table = " ".join(said(shell.run("ps")).split())
    assert "With borrowed GPUs." in table
    assert "It made room for a job that goes before" in table
    assert "They can be taken back when their owners need them" in " ".join(
        said(shell.run("show", str(lent.job_id))).split()
    )
    assert "It made room for a job that goes before" in " ".join(said(shell.run("show", str(back.job_id))).split())


def test_extend_says_whom_it_would_delay_and_ends_with_status_1(shell: Shell, team_of_alice: User) -> None:
    node = factories.make_node("alpha", gpus=1)
    run = factories.make_run(factories.make_job(team_of_alice), node)
    waits = factories.make_job(factories.make_user("bob", teams=(team_of_alice.teams.get(),)))
    done = shell.run("extend", str(run.job_id), "2h")
    assert (done.returncode, f"#{waits.pk} by 2 h" in done.stdout.decode()) == (1, True)


def test_jobs_change_places_and_priorities(shell: Shell, team_of_alice: User) -> None:
    first, second = factories.make_job(team_of_alice), factories.make_job(team_of_alice)
    assert said(shell.run("reorder", str(second.pk), "up")) == f"#{second.pk}: moved.\n"
    assert said(shell.run("reorder", str(second.pk), "up")) == f"#{second.pk}: nothing changed.\n"
    queue = json.loads(said(shell.run("queue", "--json")))["queued"]
    assert [entry["id"] for entry in queue] == [second.pk, first.pk]
    assert said(shell.run("reorder", str(first.pk), str(second.pk))) == f"#{first.pk}: moved.\n"
    assert said(shell.run("priority", str(second.pk), "high")) == f"#{second.pk}: changed.\n"
    second.refresh_from_db()
    assert second.priority == 2
    refused = shell.run("pin", str(first.pk))
    assert (refused.returncode, "administrator" in refused.stderr.decode()) == (2, True)


def test_the_fair_shares_are_a_table(shell: Shell, team_of_alice: User) -> None:
    factories.make_job(team_of_alice)
    table = said(shell.run("fairshare"))
    assert "team" in table
    assert team_of_alice.teams.get().name in table
    assert "alice" in table
