"""Joining as a host: what is refused before anything is sent, the file that settings are written to, the key."""

import hashlib
import os
import stat
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography.fernet import InvalidToken
from django.conf import settings
from django.test import Client, override_settings
from rq.intermediate_queue import IntermediateQueue

from jobs import dbroles, hostrights, joinclient, joining, queues, redisusers, secretbox
from portal.models import User
from tests import factories
from tests.rigs.certificates import make_certificates
from tests.rigs.line import running_line
from tests.rigs.redis import RedisServer


def test_nothing_is_sent_in_the_clear() -> None:
    with pytest.raises(joinclient.CannotJoin, match="must begin with https://"):
        joinclient.join("http://portal.example.org", "dkj_x", name="beta")


def test_the_file_of_settings_is_closed_and_keeps_what_was_there(tmp_path: Path) -> None:
    from dotenv import dotenv_values

    file = tmp_path / "node.env"
    file.write_text("# mine\nDOCKER_HOST=unix:///run/docker.sock\nREDIS_URL=redis://old\n")
    given = {"REDIS_URL": "redis://a%3Ab:c@d:1/0", "STORAGES": '{"logs": {"OPTIONS": {"a": "it\'s \\\\ $HOME"}}}'}
    joinclient.write(file, given)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert dict(dotenv_values(file, interpolate=False)) == {"DOCKER_HOST": "unix:///run/docker.sock", **given}
    assert "# mine" in file.read_text()


def test_a_host_that_waits_for_the_database_says_why(tmp_path: Path) -> None:
    """What is in its way may be a rule of PostgreSQL's, of which nobody hears otherwise."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "portal.settings", "DATA_DIR": str(tmp_path),
           "DATABASE_URL": "postgres://x:y@127.0.0.1:9/dockyard"}  # fmt: skip
    command = [sys.executable, "manage.py", "prepare", "--wait"]
    with subprocess.Popen(command, env=env, cwd=settings.BASE_DIR, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        said = next(line for line in waiting.stderr if "Waiting for the database" in line)
        waiting.kill()
    assert "refused" in said


def test_a_host_opens_secrets_and_does_not_learn_the_portals_key(settings: Any) -> None:
    """The portal's key also signs sessions unless it has two."""
    sealed, key = secretbox.seal("for the job"), secretbox.opener()
    assert settings.SECRETS_KEY not in key
    settings.SECRETS_KEY = key
    assert secretbox.open_(sealed) == "for the job"
    settings.SECRETS_KEY = "another"
    with pytest.raises((secretbox.Unreadable, InvalidToken)):
        secretbox.open_(sealed)


@pytest.mark.django_db
@pytest.mark.parametrize("body", [5000 * "[", '{"token": "\\ud800", "name": "\\u0000"}'], ids=["deep", "no text"])
def test_a_strangers_nonsense_is_refused_like_any_wrong_token(client: Client, body: str) -> None:
    answer = client.post("/hosts/join/", body, content_type="application/json")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (403, "TOKEN")


@pytest.mark.django_db
@pytest.mark.any_database
def test_an_installation_that_no_other_host_can_join_says_why(client: Client) -> None:
    with pytest.raises(joining.Refused) as refused:
        joining.make_token()
    assert refused.value.code == ("STORAGE" if dbroles.has_roles() else "SQLITE")
    near = client.post("/hosts/join/", {"token": "dkj_guessed", "name": "x"}, content_type="application/json")
    assert (near.status_code, near.json()["errors"][0]["code"]) == (403, "TOKEN"), "strangers learn no more"
    far = client.post("/hosts/join/", {}, content_type="application/json", REMOTE_ADDR="192.0.2.7")
    assert (far.status_code, far.json()["errors"][0]["code"]) == (403, "INSECURE")


def _keys(node: str) -> set[str]:
    return {rule[1:] for rule in hostrights.redis_rules("main", node) if rule.startswith("~")}


def test_rights_of_names_that_begin_alike_do_not_meet() -> None:
    mine, theirs = _keys("gpu"), _keys("gpu-2") - _keys("gpu")
    assert theirs
    for key in theirs:
        assert not any(fnmatchcase(key.replace("*", "x"), pattern) for pattern in mine), key
    assert hostrights.mark("gpu") != hostrights.mark("gpu-2")
    assert f"~rq:worker:{hostrights.worker_prefix('gpu')}*" in hostrights.redis_rules("main", "gpu")
    assert not hostrights.worker_prefix("gpu-2").startswith(hostrights.worker_prefix("gpu"))


def test_a_hosts_worker_clears_away_what_a_killed_one_had_just_taken(redis_server: RedisServer) -> None:
    """RQ notes such a job in a key of its own: without the right to, every worker of the host died as it started."""
    redisusers.create("main", "gpu", hashlib.sha256(b"secret").hexdigest())
    user = hostrights.redis_user("main", "gpu")
    with redis.Redis(port=redis_server.port, username=user, password="secret") as host:
        queue = queues.queue(queues.node_queue("gpu"), host)
        job = queue.enqueue_call(queues.LAUNCH, args=[1], job_id=f"{hostrights.mark('gpu')}-launch-1")
        taken = IntermediateQueue(queue.key, host)
        host.lmove(queue.key, taken.key)
        worker = queues.Worker([queue], connection=host, name=f"{hostrights.worker_prefix('gpu')}x")
        worker.clean_registries()
        assert taken.get_job_ids() == [job.id], "its worker may still be at it"
        host.set(taken.get_first_seen_key(job.id), time.time() - 120)
        worker.clean_registries()
        assert taken.get_job_ids() == []
        assert queue.failed_job_registry.get_job_ids() == [job.id]


@override_settings(NODE_REDIS_URL="redis://:x@127.0.0.1:6379/0", LOGS_ARE_SHARED=True)
def test_a_host_elsewhere_is_given_no_address_of_this_machine() -> None:
    with pytest.raises(joining.Refused) as refused:
        joining._check_reachable("192.0.2.7")
    assert (refused.value.code, refused.value.params) == ("ADDRESS", {"setting": "NODE_REDIS_URL"})


def test_a_portal_that_nobody_vouches_for_is_told_no_token(tmp_path: Path) -> None:
    with running_line(9, make_certificates(tmp_path)) as front:
        portal = f"https://127.0.0.1:{front.port}"
        with pytest.raises(joinclient.CannotJoin, match="certificate"):
            joinclient.join(portal, "dkj_x", name="beta")


@pytest.mark.django_db
def test_pages_are_there_when_a_host_with_gpus_has_left(client: Client, alice: User, root_admin: User) -> None:
    """Its GPUs stay in the database for the sake of its past: the dashboard failed for everybody."""
    factories.make_node("alpha", gpus=1)
    joining.leave(factories.make_node("beta", gpus=2), root_admin)
    for user in (alice, root_admin):
        client.force_login(user)
        pages = {path: client.get(path) for path in ("/", "/gpus/", "/timeline/", "/queue/", "/jobs/new/")}
        assert {path: page.status_code for path, page in pages.items()} == dict.fromkeys(pages, 200)
        assert "alpha" in (seen := pages["/"].content.decode())
        assert "beta" not in seen
