"""The pages of hosts: what each reader sees, and what admins do there."""

import hashlib
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from gpus.models import HostEvent, JoinToken, Node
from jobs import dbroles, hostevents
from jobs.models import Team
from jobs.states import RunState
from portal.models import User
from tests import factories

FACTS = {"kernel": "6.1.0-9", "toolkit": "1.17.4", "system": "Debian 12", "clock_skew": 7.5,
         "disks": [{"what": ["engine"], "path": "/var/lib/docker", "free_mib": 900, "total_mib": 90000}]}  # fmt: skip


@pytest.fixture
def node(db: None) -> Node:
    return factories.make_node("alpha", gpus=2, facts=FACTS, engine_version="27.1.2", labels={"rack": "b7"})


def page(user: User, path: str = "/hosts/") -> Any:
    client = Client()
    client.force_login(user)
    return client.get(path)


def test_staff_see_what_ails_a_host_and_others_that_it_is_there(node: Node, alice: User, root_admin: User) -> None:
    for path in ("/hosts/", "/hosts/alpha/"):
        told, shown = page(root_admin, path).content.decode(), page(alice, path).content.decode()
        for text in ("alpha", "rack=b7"):
            assert text in told
            assert text in shown
        for text in ("27.1.2", "7.5 s ahead"):
            assert text in told
            assert text not in shown
    assert (
        "900 MiB of 87.9 GiB are free on the disk of /var/lib/docker."
        in page(root_admin, "/hosts/alpha/").content.decode()
    )
    assert "6.1.0-9" in page(root_admin, "/hosts/alpha/").content.decode()
    assert Client().get("/hosts/").status_code == 302
    assert page(root_admin, "/hosts/nowhere/").status_code == 404


@pytest.mark.parametrize("path", ["token", "alpha/cordon", "alpha/uncordon", "alpha/dead", "alpha/leave"])
def test_only_staff_change_hosts(node: Node, alice: User, path: str) -> None:
    client = Client()
    client.force_login(alice)
    assert client.post(f"/hosts/{path}/").status_code == 404
    assert client.get(f"/hosts/{path}/").status_code in (404, 405)
    assert Client().post(f"/hosts/{path}/").status_code in (302, 403)


def test_a_host_is_closed_and_opened_with_a_reason_and_its_journal_says_so(node: Node, root_admin: User) -> None:
    client = Client()
    client.force_login(root_admin)
    client.post("/hosts/alpha/cordon/", {"reason": "new driver"})
    node.refresh_from_db()
    assert (node.cordoned, node.cordon_reason) == (True, "new driver")
    assert "Closed to new jobs: new driver, by root_admin" in client.get("/hosts/alpha/").content.decode()
    client.post("/hosts/alpha/uncordon/")
    node.refresh_from_db()
    assert not node.cordoned
    assert list(HostEvent.objects.values_list("kind", flat=True)) == ["CORDONED", "UNCORDONED"]


def test_what_runs_on_a_host_is_named_to_those_who_may_see_it(
    node: Node, alice: User, charlie: User, vision: Team
) -> None:
    run = factories.make_run(factories.make_job(alice, vision, name="secret plan", gpus=1), node)
    mine, theirs = (page(user, "/hosts/alpha/").content.decode() for user in (alice, charlie))
    assert "secret plan" in mine
    assert "secret plan" not in theirs
    assert f"#{run.job_id}" in theirs


def silent(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(last_seen=timezone.now() - timedelta(hours=1))


def test_declaring_dead_says_first_what_becomes_of_each_job(
    node: Node, alice: User, vision: Team, root_admin: User
) -> None:
    jobs = [factories.make_job(alice, vision, gpus=1, preemptible=again) for again in (False, True)]
    for job in jobs:
        factories.make_run(job, node)
    client = Client()
    client.force_login(root_admin)
    assert client.get("/hosts/alpha/dead/").status_code == 302, "it is alive"
    silent(node)
    asked = client.get("/hosts/alpha/dead/").content.decode()
    assert "Its jobs may still be running." in asked
    assert 'data-state="LOST"' in asked
    assert 'data-state="QUEUED"' in asked
    client.post("/hosts/alpha/dead/")
    for job, state in zip(jobs, ("LOST", "QUEUED"), strict=True):
        job.refresh_from_db()
        assert (job.state, job.current_run and job.current_run.end_reason) == (state, "HOST_LOST")
    assert "Declared dead; 2 jobs were given up here, by root_admin" in client.get("/hosts/alpha/").content.decode()
    assert jobs[0].runs.get().state == RunState.ENDED


def test_a_host_that_falls_silent_and_comes_back_leaves_one_line_each(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(first_seen=timezone.now() - timedelta(days=1))
    for _twice in range(2):
        hostevents.watch(timezone.now())
    silent(node)
    for _twice in range(2):
        hostevents.watch(timezone.now())
    Node.objects.filter(pk=node.pk).update(last_seen=timezone.now())
    for _twice in range(2):
        hostevents.watch(timezone.now())
    assert list(HostEvent.objects.values_list("kind", flat=True)) == ["SILENT", "HEARD"]


def test_a_join_token_is_shown_once_with_its_command(root_admin: User, settings: Any) -> None:
    settings.LOGS_ARE_SHARED = True
    client = Client()
    client.force_login(root_admin)
    answer = client.post("/hosts/token/", {"name": "gpu9"})
    if not dbroles.has_roles():
        assert "Hosts join an installation on PostgreSQL" in client.get("/hosts/").content.decode()
        return
    shown = answer.content.decode()
    [secret] = re.findall(r"manage.py node --join \S+ (dkj_\S+)", shown.replace("</pre>", " "))
    token = JoinToken.objects.get()
    assert (token.name, token.digest) == ("gpu9", hashlib.sha256(secret.encode()).hexdigest())
    assert secret not in client.get("/hosts/").content.decode()
