"""An installation that is set back to a back-up of a minute ago, while its jobs run on."""

from pathlib import Path

from gpus.models import Node
from jobs.models import Cluster, Job
from jobs.states import RunState
from portal import nodereports
from tests.rigs.processes import wait_until
from tests.way.lab import Lab
from tests.way.test_kills import COUNT, ends_as_if_nothing_had_been

ROLES = ("web", "scheduler", "node")


def test_jobs_run_on_over_a_restore(lab: Lab, tmp_path: Path) -> None:
    """What ran then is taken up with its whole log; what was started since is told of, and not touched."""
    job = lab.start(COUNT.format(n=300))
    lab.stack.manage("backup", str(tmp_path))
    since = lab.start("exec sleep 300")
    name = lab.run(since).container_name
    stop_all(lab)
    [made] = tmp_path.iterdir()
    lab.stack.manage("restore", str(made), "--force")
    assert not lab.call(lambda: Job.objects.filter(pk=since.pk).exists())
    lab.stack.start_all()
    try:
        wait_until(lambda: name in told_as_unknown(lab), f"{name} is told of")
        later = lab.submit("echo later")
        assert later.pk > since.pk + 1000
        ends_as_if_nothing_had_been(lab, job, 300)
        assert lab.fresh(later).state == "QUEUED"  # starts are paused
        with lab.engine.client() as client:
            stray = client.containers.get(name)
            assert stray.status == "running"
            stray.remove(force=True)
    finally:
        lab.call(lambda: Cluster.objects.update(paused=False, pause_reason=""))
    assert lab.log(lab.end(later)) == b"later\n"
    wait_until(lambda: not told_as_unknown(lab), "nothing is unknown any more")


def stop_all(lab: Lab) -> None:
    for role in ROLES:
        lab.stack.stop(role)
    # As if NODE_SILENT_AFTER had passed, which is long in this rig.
    lab.call(lambda: (Node.objects.update(last_seen=None), Cluster.objects.update(last_pass_at=None)))
    assert lab.call(lambda: RunState.RUNNING in {run.state for job in Job.objects.all() for run in job.runs.all()})


def told_as_unknown(lab: Lab) -> list[str]:
    node = lab.stack.env["NODE_NAME"]
    return [stray["name"] for stray in nodereports.read([node])[node].get("unknown", ())]
