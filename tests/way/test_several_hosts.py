"""Two hosts on one portal: they join with rights of their own, are lost, come back, are given up and leave."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import redis
from django.utils import timezone

from gpus.models import HostEvent, Node
from jobs import hostrights, joining
from jobs.declaredead import at_stake, declare_dead
from jobs.models import Job, Run
from tests.rigs.engine import Engine
from tests.rigs.hosts import Host, Hosts, running_hosts
from tests.rigs.processes import wait_until
from tests.way.lab import Lab, gate

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: Any, engine: Engine, redis_server: Any, django_db_blocker: Any) -> Iterator[Hosts]:
    with django_db_blocker.unblock(), running_hosts(tmp_path_factory.mktemp("hosts"), engine) as running:
        yield running


@pytest.fixture
def lab(hosts: Hosts, engine: Engine) -> Iterator[Lab]:
    lab = Lab(hosts.portal, engine)
    yield lab
    lab.cancel_all()
    wait_until(lambda: not any(host.containers() for host in hosts.hosts.values()), "no container is left")
    wait_until(lambda: lab.held_slots() == 0, "nothing is held")


def where(lab: Lab, job: Job) -> str:
    return str(lab.call(lambda: Run.objects.filter(job=job).latest("number").node.name))


def on(name: str) -> dict[str, Any]:
    return {"node_labels": (f"host={name}",)}


def open_on(host: Host) -> None:
    """`Lab.open` for the only job of a host, whose folders are not the portal's."""
    with host.engine.client() as client:
        (container,) = client.containers.list()
        Path(f"/proc/{container.attrs['State']['Pid']}/cwd/go").touch()


@pytest.fixture(scope="module", autouse=True)
def _labels(hosts: Hosts) -> None:
    for name in hosts.hosts:
        hosts.call(lambda name=name: Node.objects.filter(name=name).update(labels={"host": name}))


def test_a_joined_host_runs_a_job_with_no_more_than_its_own_rights(hosts: Hosts, lab: Lab) -> None:
    jobs = [lab.submit(f"echo on {name}; exit 3", gpus=1, **on(name)) for name in hosts.hosts]
    for job, name in zip(jobs, hosts.hosts, strict=True):
        ended = lab.end(job)
        assert (ended.state, ended.exit_code) == ("FAILED", 3), lab.run(job).engine_message
        assert lab.log(job) == f"on {name}\n".encode()
        assert where(lab, job) == name
    for host in hosts.hosts.values():
        assert "denied" not in host.log.read_text()
        assert "NOPERM" not in host.log.read_text()
        assert os.stat(host.env_file).st_mode & 0o077 == 0
        assert "SECRET_KEY" not in host.given


FORBIDDEN_SQL = [
    ("the passwords of people", "SELECT password FROM portal_user"),
    ("sessions", "SELECT * FROM django_session"),
    ("API tokens", "SELECT digest FROM portal_apitoken"),
    ("join tokens", "SELECT digest FROM gpus_jointoken"),
    ("the Redis password of another host", "SELECT redis_digest FROM gpus_hostaccess"),
    ("to become staff", "UPDATE portal_user SET is_staff = true"),
    ("to be told of no quota", "UPDATE jobs_quota SET gpus = 1000"),
    ("what an admin wishes of a host", "UPDATE gpus_node SET cordoned = false"),
    ("what a person has asked for", "UPDATE jobs_job SET script = 'echo mine'"),
    ("to place a job", "INSERT INTO jobs_run (job_id, node_id, number) SELECT id, 1, 9 FROM jobs_job"),
    ("the past", "DELETE FROM jobs_jobevent"),
    ("a table of its own", "CREATE TABLE mine (id int)"),
]


def test_a_host_can_neither_read_secrets_nor_touch_what_is_not_its_own(hosts: Hosts, lab: Lab) -> None:
    job = lab.start("exec sleep 100", gpus=1, **on("alpha"))
    run = lab.run(job)
    allocation = lab.call(lambda: run.allocation.pk)
    with psycopg.connect(hosts.hosts["beta"].given["DATABASE_URL"], autocommit=True) as beta:
        for what, statement in FORBIDDEN_SQL:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
                print(what, beta.execute(statement).rowcount)
        assert beta.execute("SELECT script FROM jobs_job WHERE id = %s", [job.pk]).fetchall() == []
        for table, column, key in (("jobs_run", "wish", run.pk), ("jobs_allocation", "released_at", allocation)):
            assert beta.execute(f"UPDATE {table} SET {column} = NULL WHERE id = {key}").rowcount == 0
        assert beta.execute("UPDATE gpus_node SET last_seen = NULL WHERE name = 'alpha'").rowcount == 0
    with psycopg.connect(hosts.hosts["alpha"].given["DATABASE_URL"]) as alpha:
        assert alpha.execute("SELECT count(*) FROM jobs_job WHERE id = %s", [job.pk]).fetchall() == [(1,)]


def test_a_host_reaches_its_own_queues_in_redis_and_no_others(hosts: Hosts) -> None:
    ours = f"dockyard.{hosts.portal.env['INSTALLATION']}"
    theirs = hostrights.mark("alpha")
    with redis.Redis.from_url(hosts.hosts["beta"].given["REDIS_URL"]) as beta:
        for command in (
            ("RPUSH", "rq:queue:node.alpha", "x"), ("LRANGE", "rq:queue:node.alpha.stop", 0, -1),
            ("HSET", f"rq:job:{theirs}-launch-1-0", "data", "x"), ("SET", f"{ours}.gpus.alpha", "{}"),
            ("PUBLISH", "rq:pubsub:alpha.x", "{}"), ("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "requirepass"),
            ("ACL", "LIST"), ("CLIENT", "LIST"), ("EVAL", "return 1", 0),
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                print(command, beta.execute_command(*command))
        assert beta.execute_command("LLEN", "rq:queue:node.beta") >= 0
        listener = beta.pubsub()
        listener.subscribe("rq:pubsub:alpha.x")
        with pytest.raises(redis.exceptions.NoPermissionError):
            listener.get_message(timeout=5)


def test_a_token_is_good_once_and_no_name_is_taken_over(hosts: Hosts) -> None:
    def ask(name: str) -> tuple[int, str]:
        answer = httpx.post(f"{hosts.portal.url}/hosts/join/", json={"token": token, "name": name}, timeout=30)
        return answer.status_code, answer.json().get("errors", [{"code": ""}])[0]["code"]

    token = hosts.token()
    assert ask("beta") == (409, "NAME_TAKEN")
    assert ask("no name") == (409, "NAME")
    assert ask("gamma") == (200, "")
    assert ask("delta") == (403, "TOKEN")
    assert hosts.call(lambda: Node.objects.filter(name="delta").exists()) is False


def test_redis_users_come_back_with_redis(hosts: Hosts, lab: Lab) -> None:
    """Redis keeps users in memory alone: a restart has none, and no host could log in."""
    hosts.portal.redis.restart()
    ended = lab.end(lab.submit("echo after", gpus=1, **on("beta")))
    assert (ended.state, lab.log(ended)) == ("SUCCEEDED", b"after\n")


COUNT = "i=0; while [ $i -lt {n} ]; do i=$((i+1)); echo n=$i; sleep 0.05; done; exit 7"


def counted(log: bytes) -> int:
    """Up to which number the log counts from 1 on, without a gap or a double."""
    numbers = [int(line.removeprefix(b"n=")) for line in log.splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    return len(numbers)


def test_a_restarted_database_costs_running_jobs_nothing(hosts: Hosts, lab: Lab) -> None:
    """rq/django-rq#123, #650, netbox-community/netbox#22466: a restart of PostgreSQL during a long job."""
    jobs = [lab.start(COUNT.format(n=120), gpus=1, **on(name)) for name in hosts.hosts]
    hosts.portal.restart_database()
    waiting = lab.submit("echo next", gpus=1)
    for job in jobs:
        ended = lab.end(job)
        assert (ended.state, ended.exit_code) == ("FAILED", 7)
        assert counted(lab.log(job)) == 120
        assert lab.call(lambda job=job: job.runs.count()) == 1
    assert lab.end(waiting).state == "SUCCEEDED"


def test_a_standby_takes_the_database_over_while_jobs_run(hosts: Hosts, lab: Lab) -> None:
    """What was submitted a moment before is there; what runs, runs on; nothing is done twice."""
    portal = hosts.portal
    portal.add_standby()
    jobs = [lab.start(COUNT.format(n=120), gpus=1, **on(name)) for name in hosts.hosts]
    just_now = [lab.submit(f"echo {number}", gpus=1) for number in range(3)]
    portal.fail_over()
    later = lab.submit("echo later", gpus=1)
    for job in jobs:
        ended = lab.end(job)
        assert (ended.state, ended.exit_code, counted(lab.log(job))) == ("FAILED", 7, 120)
    for job, said in [*zip(just_now, (b"0\n", b"1\n", b"2\n"), strict=True), (later, b"later\n")]:
        assert (lab.end(job).state, lab.log(job)) == ("SUCCEEDED", said)
    begun = [lab.call(job.runs.exclude(started_at=None).count) for job in (*jobs, *just_now, later)]
    assert begun == [1] * 6, "a placing may have been taken back; nothing has run twice"


def test_a_cut_network_costs_a_running_job_nothing_and_its_host_is_adopted_again(hosts: Hosts, lab: Lab) -> None:
    """codalab/codalab-worksheets#2990: a host that was called offline, and whose jobs were not over."""
    job = lab.start(COUNT.format(n=100).replace("exit", f"{gate()}; exit"), gpus=1, **on("beta"))
    with hosts.portal.cut_off():
        silent = Node.objects.filter(name="beta")
        hosts.call(lambda: silent.update(last_seen=timezone.now() - timedelta(hours=1)))
        waiting = lab.submit("echo later", gpus=2, **on("beta"))
        wait_until(lambda: lab.call(HostEvent.objects.filter(kind="SILENT", node__in=silent).exists), "it is missed")
        assert lab.fresh(job).state == "RUNNING"
        assert lab.held_slots() == 1
        assert lab.fresh(waiting).state == "QUEUED"
        open_on(hosts.hosts["beta"])
    ended = lab.end(job)
    assert (ended.state, ended.exit_code, counted(lab.log(job))) == ("FAILED", 7, 100)
    assert lab.call(job.runs.count) == 1
    assert lab.log(lab.end(waiting)) == b"later\n"


def test_a_network_that_swallows_all_is_noticed_by_every_client_of_a_host(hosts: Hosts, lab: Lab) -> None:
    """Packets that vanish: no end, no refusal. By TCP's own time-outs a client waits for a quarter of an hour."""
    job = lab.start(COUNT.format(n=200).replace("exit", f"{gate()}; exit"), gpus=1, **on("beta"))
    with hosts.portal.black_hole():
        there = hosts.portal.dialled()
        assert there
        waiting = lab.submit("echo later", gpus=1, **on("beta"))
        wait_until(lambda: not there & hosts.portal.dialled(), "every connection is given up")
        assert lab.fresh(job).state == "RUNNING"
        assert lab.held_slots() >= 1
        open_on(hosts.hosts["beta"])
    ended = lab.end(job)
    assert (ended.state, ended.exit_code, counted(lab.log(job))) == ("FAILED", 7, 200)
    assert lab.call(job.runs.count) == 1
    assert lab.log(lab.end(waiting)) == b"later\n"


def silence(hosts: Hosts, name: str) -> None:
    """The host's processes are gone at a blow, a while ago; its engine and its containers are not."""
    hosts.hosts[name].kill()
    long_ago = timezone.now() - timedelta(hours=1)
    hosts.call(lambda: Node.objects.filter(name=name).update(last_seen=long_ago))


def test_a_host_that_was_given_up_is_cleared_before_anything_starts_there(hosts: Hosts, lab: Lab) -> None:
    """codalab/codalab-worksheets#2990, ansible/awx#11572, #16243: a host that was thought dead, and was not."""
    beta = hosts.hosts["beta"]
    lost = lab.start(COUNT.format(n=10000), gpus=1, **on("beta"))
    again = lab.start(COUNT.format(n=10000), gpus=1, preemptible=True, **on("beta"))
    node = lab.call(lambda: Node.objects.get(name="beta"))
    with pytest.raises(joining.Refused) as refused:
        lab.call(lambda: declare_dead(node, lab.user))
    assert refused.value.code == "ALIVE"
    silence(hosts, "beta")
    assert [str(state) for _run, state in lab.call(lambda: at_stake(node))] == ["LOST", "QUEUED"]
    lab.call(lambda: declare_dead(node, lab.user))
    assert lab.held_slots() == 0
    assert (lab.fresh(lost).state, lab.fresh(lost).end_reason) == ("LOST", "HOST_LOST")
    assert lab.fresh(again).state == "QUEUED"
    assert len(beta.containers()) == 2, "they know nothing of it"
    beta.start()
    lab.wait(again, "RUNNING")
    came_back = lab.call(lambda: HostEvent.objects.get(node=node, kind="CAME_BACK").at)
    first, second = lab.call(lambda: list(again.runs.order_by("number")))
    assert came_back <= second.placed_at, "nothing was placed before the host was clear"
    assert [name.endswith(f"-{again.pk}-2") for name in beta.containers()] == [True]
    for run in (lab.run(lost), first):
        fresh = lab.call(lambda run=run: Run.objects.get(pk=run.pk))
        assert fresh.log_complete
        assert not fresh.log_holes
    assert counted(lab.log(lost)) > 0
    lab.cancel(again)
    kinds = lab.call(lambda: list(HostEvent.objects.filter(node=node).values_list("kind", flat=True)))
    told = [kind for kind in kinds if kind in ("DECLARED_DEAD", "STARTED", "CAME_BACK")]
    assert told[-3:] == ["DECLARED_DEAD", "STARTED", "CAME_BACK"]


def test_a_host_that_left_can_do_nothing_any_more(hosts: Hosts, lab: Lab) -> None:
    beta = hosts.hosts["beta"]
    job = lab.start("exec sleep 100", gpus=1, **on("beta"))
    node = lab.call(lambda: Node.objects.get(name="beta"))
    with pytest.raises(joining.Refused) as refused:
        lab.call(lambda: joining.leave(node, lab.user))
    assert refused.value.code == "RUNS"
    lab.cancel(job)
    lab.end(job)
    lab.call(lambda: joining.leave(node, lab.user))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(beta.given["DATABASE_URL"])
    user = hostrights.redis_user(hosts.portal.env["INSTALLATION"], "beta")

    def is_unknown() -> bool:  # by the scheduler: this process speaks to another Redis
        with hosts.portal.redis.client() as client:
            return user not in client.acl_users()

    wait_until(is_unknown, "its Redis user gone")
    again = httpx.post(f"{hosts.portal.url}/hosts/join/", json={"token": hosts.token(), "name": "beta"}, timeout=30)
    with psycopg.connect(again.json()["settings"]["DATABASE_URL"]) as beta_again:
        assert beta_again.execute("SELECT left_at FROM gpus_node WHERE name = 'beta'").fetchall() == [(None,)]
