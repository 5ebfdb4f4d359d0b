"""Fill an empty installation with people, quotas, a mount and a small history, for the demo. Safe to repeat.

What was seeded once is an admin's from then on: nothing that was taken away or changed comes back.
"""

import json
import math
import os
import secrets
import time
import uuid
from argparse import ArgumentParser
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone

from gpus.models import GPU, GPUMinute, Node
from jobs import gputime, lastwords, logstore, quotas
from jobs.models import Allocation, AllocationSlot, Job, JobEvent, Membership, Mount, Quota, Run, Team
from jobs.states import JOB_STATE_AFTER, EndReason, JobState, RunState
from portal.demo.engine import IMAGE
from portal.demo.history import HISTORY, Past
from portal.models import User

_NAMESPACE = uuid.UUID("b1a9f3b2-4a51-4f0e-8f0b-6d9a4f3f8c11")
NODE_PATIENCE = 60  # seconds until the node must have reported its GPUs
PEOPLE = ("admin", "alice", "bob")
TEAM = "vision"
CHART_HOURS = 36  # jobs that ended since then get charts


class Command(BaseCommand):
    help = "Create the demo's people, team, quotas, mount and history, and write the log-ins to DATA_DIR/accounts.json."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--reset-passwords", action="store_true", help="give each of the people a new password")

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            people, new = _people(reset=options["reset_passwords"])
            if new:
                _rules(people, new)
        if options["reset_passwords"]:
            self.stdout.write("".join(f"{name}  {word}\n" for name, word in _passwords().items()))
        team, node = Team.objects.filter(name=TEAM).first(), _node_with_gpus()
        for past in HISTORY:
            if team is not None:
                _remember(past, people[past.owner], team, node)
        gputime.rebuild(timezone.now())  # days that were rolled up may have got a past


# --- people ---


def _accounts_path() -> Path:
    return Path(settings.DATA_DIR) / "accounts.json"


def _passwords() -> dict[str, str | None]:
    """What accounts.json tells: a password by user name; None where its owner has chosen another."""
    path = _accounts_path()
    known: dict[str, str | None] = json.loads(path.read_text()) if path.exists() else {}
    return known


def _people(*, reset: bool) -> tuple[dict[str, User], set[str]]:
    """The accounts, each with the password that accounts.json tells, unless its owner has changed it; which are new."""
    known, people, new = _passwords(), dict[str, User](), set[str]()
    for name in PEOPLE:
        user, created = User.objects.get_or_create(username=name, defaults={"email": f"{name}@example.org"})
        if created or reset or name not in known:
            known[name] = _new_password(user)
        elif (password := known[name]) is not None and not user.check_password(password):
            known[name] = None
        people[name] = user
        if created:
            new.add(name)
            User.objects.filter(pk=user.pk).update(is_staff=name == "admin", is_superuser=name == "admin")
    with open(os.open(_accounts_path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(known, file)
    return people, new


def _new_password(user: User) -> str:
    password = secrets.token_urlsafe(9)
    user.set_password(password)
    user.save(update_fields=["password"])
    return password


def _rules(people: dict[str, User], new: set[str]) -> None:
    """Team vision, led by alice, with those who are new; its quota, that of everybody, and alice's own; a mount."""
    team, _ = Team.objects.get_or_create(name=TEAM)
    for name in new:
        role = Membership.Role.LEAD if name == "alice" else Membership.Role.MEMBER
        Membership.objects.get_or_create(team=team, user=people[name], defaults={"role": role})
    Quota.objects.get_or_create(team=team, defaults={"gpus": 4, "gpu_hours": 2000, "running_jobs": 12})
    Quota.objects.get_or_create(
        user=None, team=None,
        defaults={"gpus": 2, "running_jobs": 6, "queued_jobs": 20, "job_gpus": 2, "limit_seconds": 2 * 86400,
                  "gpu_hours": 600, "priority": 1},
    )  # fmt: skip
    if "alice" in new:
        Quota.objects.get_or_create(
            user=people["alice"],
            defaults={"gpus": 3, "running_jobs": 8, "queued_jobs": 20, "job_gpus": 2, "limit_seconds": 2 * 86400,
                      "gpu_hours": 800, "priority": 2},
        )  # fmt: skip
    _mount()


def _mount() -> None:
    """A read-only folder with a file in it, for the form to offer."""
    source = Path(settings.MOUNT_ROOTS[0]) / "datasets"
    source.mkdir(parents=True, exist_ok=True)
    (source / "README.txt").write_text("Shared, read-only: jobs find this at /mnt/datasets.\n")
    Mount.objects.get_or_create(name="datasets", defaults={"source": str(source), "read_only": True})


# --- history ---


def _node_with_gpus() -> Node:
    """This host's node, once its agent has reported. Raises CommandError."""
    end = time.monotonic() + NODE_PATIENCE
    while time.monotonic() < end:
        node = Node.objects.filter(name=settings.NODE_NAME).first()
        if node is not None and node.is_alive() and node.engine_id and node.gpus.filter(health=GPU.Health.OK).exists():
            return node
        time.sleep(0.1)
    raise CommandError(f"the node {settings.NODE_NAME} has reported no GPU within {NODE_PATIENCE} seconds")


def _remember(past: Past, owner: User, team: Team, node: Node) -> None:
    """One ended job with its run, allocation, events and log, unless it is there.

    It is of a time before the product ran: its rows are written as they ended. All moves since go through `advance`.
    """
    submission = uuid.uuid5(_NAMESPACE, past.key)
    if Job.objects.filter(owner=owner, submission=submission).exists():
        return
    created = timezone.now() - timedelta(minutes=past.ago)
    started = created + timedelta(minutes=past.waited)
    ended = started + timedelta(minutes=past.ran)
    with transaction.atomic():
        job = _job(past, owner, team, submission, created, started, ended)
        run = _run(past, job, node, started, ended)
        gpus = _gpus(past, node)
        _allocation(run, gpus, started, ended)
        _events(past, job, run, gpus)
        _log(past, run)
        if ended > timezone.now() - timedelta(hours=CHART_HOURS):
            _minutes(gpus, started, ended)


def _job(
    past: Past, owner: User, team: Team, submission: uuid.UUID, created: datetime, started: datetime, ended: datetime
) -> Job:
    return Job.objects.create(
        owner=owner, team=team, submission=submission, name=past.name, image=f"{IMAGE}:latest", script=past.work.script,
        gpus=past.gpus, millicpus=4000 if past.gpus else 1000, memory_mib=past.memory_mib, shm_mib=512,
        limit_seconds=int(past.limit * 60), priority=past.priority, state=JOB_STATE_AFTER[EndReason(past.reason)],
        end_reason=past.reason, exit_code=past.exit_code, created_at=created, queued_at=created, started_at=started,
        ended_at=ended,
    )  # fmt: skip


def _run(past: Past, job: Job, node: Node, started: datetime, ended: datetime) -> Run:
    return Run.objects.create(
        job=job, number=1, node=node, state=RunState.ENDED, placed_at=started - timedelta(seconds=2),
        starting_at=started - timedelta(seconds=1), started_at=started, ended_at=ended, end_reason=past.reason,
        exit_code=past.exit_code, oom_killed=past.reason == EndReason.OOM_KILLED, engine_id=node.engine_id,
        deadline=started + timedelta(minutes=past.limit), uid=job.owner.run_uid, gid=job.owner.run_gid,
        log_bytes=len(past.work.log.encode()), log_complete=True, engine_message=_last_words(past),
    )  # fmt: skip


def _last_words(past: Past) -> str:
    """What its log says of its end, as for a job that really ran."""
    found = lastwords.read(past.work.log.encode(), past.exit_code, has_gpus=True)
    return found[1] if found and found[0] == past.reason else ""


def _gpus(past: Past, node: Node) -> list[GPU]:
    """The GPUs it had: spread over the node by its name, so that not all have been on the first."""
    all_gpus = list(node.gpus.order_by("index"))
    first = sum(past.key.encode()) % len(all_gpus)
    return [all_gpus[(first + n) % len(all_gpus)] for n in range(min(past.gpus, len(all_gpus)))]


def _allocation(run: Run, gpus: list[GPU], started: datetime, ended: datetime) -> None:
    job = run.job
    allocation = Allocation.objects.create(
        run=run, node=run.node, user=job.owner, team=job.team, gpus=job.gpus,
        gpu_milli=quotas.milli(job.gpus, job.gpu_milli), millicpus=job.millicpus, memory_mib=job.memory_mib,
        created_at=started, released_at=ended,
    )  # fmt: skip
    AllocationSlot.objects.bulk_create(
        AllocationSlot(allocation=allocation, gpu=gpu, released_at=ended) for gpu in gpus
    )


def _events(past: Past, job: Job, run: Run, gpus: list[GPU]) -> None:
    """The journal that such a job leaves."""
    states, at = JobState, run.started_at
    assert at is not None
    placed = {"node": run.node.name, "gpus": [gpu.index for gpu in gpus]}
    rows: list[tuple[datetime, str, str, str, dict[str, Any]]] = [
        (job.created_at, "SUBMITTED", "", states.QUEUED, {}),
        (run.placed_at, "PLACED", states.QUEUED, states.PLACED, placed),
        (at - timedelta(seconds=1), "MOVED", states.PLACED, states.STARTING, {}),
        (at, "MOVED", states.STARTING, states.RUNNING, {}),
    ]
    last, end = states.RUNNING, run.ended_at
    assert end is not None
    wish = {"STOPPED_BY_USER": "CANCEL", "TIME_LIMIT": "TIME_LIMIT"}.get(past.reason)
    if wish:
        rows.append((end - timedelta(seconds=3), "WISHED", "", "", {"wish": wish}))
        rows.append((end - timedelta(seconds=2), "SIGNALLED", last, states.STOPPING, {"signal": "SIGTERM"}))
        last = states.STOPPING
    rows.append((end, "ENDED", last, job.state, {"reason": past.reason}))
    by_hand = {"SUBMITTED": job.owner, "WISHED": job.owner if past.stopped_by else None}
    JobEvent.objects.bulk_create(
        JobEvent(job=job, run=run if kind != "SUBMITTED" else None, at=when, kind=kind, old_state=old, new_state=new,
                 params=params, actor=by_hand.get(kind))
        for when, kind, old, new, params in rows
    )  # fmt: skip


def _log(past: Past, run: Run) -> None:
    if past.work.log:
        logstore.save(run.pk, 0, 0, past.work.log.encode()).save()


def _minutes(gpus: list[GPU], started: datetime, ended: datetime) -> None:
    """One reading a minute on each of its GPUs, for the charts."""
    first = started.replace(second=0, microsecond=0)
    count = int((ended - first).total_seconds() // 60) + 1
    GPUMinute.objects.bulk_create(
        (_minute(gpu, first + timedelta(minutes=n), n) for gpu in gpus for n in range(count)), ignore_conflicts=True
    )


def _minute(gpu: GPU, minute: datetime, n: int) -> GPUMinute:
    wave = math.sin(n / 3 + gpu.index) * 4
    warm = min(n / 4, 1)
    return GPUMinute(
        gpu=gpu, minute=minute, utilisation=round(warm * (92 + wave), 1),
        power_w=round(60 + warm * (280 + 6 * wave), 1), memory_mib=round(warm * 0.7 * (gpu.memory_mib or 40960)),
        temperature_c=round(34 + warm * (30 + wave / 2), 1),
    )  # fmt: skip
