"""The product on real parts in its production settings, its users over HTTP, and plain docker-py beside it."""

import contextlib
import json
import logging
import os
import statistics
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

import django

django.setup()
for period in ("ORDER_REREAD", "PAST_REREAD", "TERMS_REREAD"):
    os.environ.pop(period)  # the tests' own: what is measured has the product's
logging.getLogger("httpx").setLevel(logging.WARNING)

import docker
import httpx
import redis
from django.conf import settings

from bench._report import say
from jobs import firewall
from jobs.containerspec import RunFacts, build
from jobs.models import Job, Membership, Team
from jobs.states import ENDED
from portal import live
from portal.models import ApiToken, User
from tests.rigs.engine import BUSYBOX, running_engine
from tests.rigs.redis import running_redis
from tests.rigs.stack import Stack

Client = docker.APIClient


class Product:
    """The running product and one user of it."""

    def __init__(self, stack: Stack, docker_url: str) -> None:
        self.stack, self.docker_url = stack, docker_url
        team = Team.objects.create(name="bench")
        self.user = User.objects.create_user("bench")
        Membership.objects.create(user=self.user, team=team)
        _token, secret = ApiToken.issue(self.user, name="bench", scope="write", expires_at=None)
        headers = {"Authorization": f"Bearer {secret}"}
        self.http = httpx.Client(base_url=stack.url, headers=headers, timeout=60)
        self.news = redis.Redis.from_url(settings.REDIS_URL).pubsub()
        self.news.subscribe(f"dockyard.{settings.INSTALLATION}.live.{live.JOBS}")

    def post(self, script: str, *, gpus: int, cpus: float = 0.1) -> int:
        """Submit a job as a program does. Returns its id."""
        answer = self.http.post("/api/jobs", json={
            "name": "bench", "team": "bench", "image": BUSYBOX, "script": script, "gpus": gpus, "cpus": cpus,
            "memory_gib": 0.0625, "shm_gib": 0.015625, "limit": "1h", "submission": str(uuid.uuid4()),
        })  # fmt: skip
        if answer.status_code != 201:
            raise RuntimeError(answer.text)
        job: int = answer.json()["id"]
        return job

    def when(self, job: int, state: str) -> float:
        """Wait until the job's being in `state` is committed; the time of the news that showed it."""
        while True:
            message = self.news.get_message(timeout=10)
            at = time.perf_counter()
            if message is None or (message["type"] == "message" and json.loads(message["data"]).get("job") == job):
                now = Job.objects.values_list("state", flat=True).get(pk=job)
                if now == state:
                    return at
                if now in ENDED:
                    raise RuntimeError(f"job {job} is {now}, waited for {state}")

    def when_ended(self, jobs: list[int]) -> float:
        """Wait until all have ended, with their logs complete; the time of the last news."""
        left = set(jobs)
        at = time.perf_counter()
        while left:
            message = self.news.get_message(timeout=10)
            if message is None or message["type"] == "message":
                at = time.perf_counter()
                if message is None or json.loads(message["data"]).get("job") in left:
                    asked = left if message is None else {json.loads(message["data"])["job"]}
                    left -= set(Job.objects.filter(pk__in=asked, state__in=ENDED).values_list("pk", flat=True))
        bad = Job.objects.filter(pk__in=jobs).exclude(state="SUCCEEDED", runs__log_complete=True).count()
        if bad:
            raise RuntimeError(f"{bad} jobs did not succeed with a complete log")
        return at

    def settle(self) -> None:
        """Wait until nothing of the jobs before is left, and take in the news of them."""
        with contextlib.closing(Client(self.docker_url)) as client:
            while client.containers(all=True):
                time.sleep(0.1)
        time.sleep(1)
        while self.news.get_message(timeout=0.05):
            pass


def create_arguments(script: str, *, millicpus: int = 100, workspace: Path | None = None) -> dict[str, Any]:
    """The product's own create arguments, for the reference: network, init, limits, log driver and all."""
    workspace = workspace or settings.DATA_DIR / "workspaces" / "reference"
    (workspace / "jobs" / "1").mkdir(parents=True, exist_ok=True)
    workspace.chmod(0o777)
    return build(RunFacts(
        installation="reference", job=1, run=1, attempt=1, image=BUSYBOX, image_variables=frozenset(),
        image_working_dir="", command_kind="script", script=script, entrypoint=(), arguments=(), environment={},
        gpus_asked=0, gpu_uuids=(), injection="none", uid=20001, gid=20001, millicpus=millicpus, memory_mib=64,
        shm_mib=16, pids=settings.PIDS_LIMIT, workspace=str(workspace), binds=(), network=firewall.NETWORK,
        log_limit_bytes=settings.LOG_LIMIT_BYTES,
    ))  # fmt: skip


@contextlib.contextmanager
def product() -> Iterator[Product]:
    """Engine, Redis, web, scheduler and one node with four simulated GPUs, in production settings."""
    port = int(settings.REDIS_URL.rpartition(":")[2].partition("/")[0])
    with running_engine() as engine, running_redis(port=port):
        stack = Stack(engine.url, periods={})
        try:
            say("starting the product")
            stack.prepare()
            stack.start_all()
            found = Product(stack, engine.url)
            found.when(found.post("true", gpus=1), "SUCCEEDED")  # everybody is warm
            yield found
        finally:
            stack.close()


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]
