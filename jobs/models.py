"""What people ask for and what became of it. `Job.advance` and `Run.advance` are the only writers of states."""

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import Any, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpus.models import GPU, Node
from jobs import announce
from jobs.states import (
    FOR_OTHERS,
    JOB_STATE_OF_RUN,
    EndReason,
    JobState,
    RunState,
    Wish,
    check_job_move,
    check_run_move,
)


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes whose values are known here: not those that the database computes."""
    return {name: value for name, value in changes.items() if not hasattr(value, "resolve_expression")}


class Priority(models.IntegerChoices):
    LOW = 0, _("low")
    NORMAL = 1, _("normal")
    HIGH = 2, _("high")
    URGENT = 3, _("urgent")


class Team(models.Model):
    class Placement(models.TextChoices):
        PACK = "pack", _("packed: few hosts are filled, whole hosts stay free for large jobs")
        SPREAD = "spread", _("spread: over as many hosts as there are")

    name = models.CharField(_("name"), max_length=60, unique=True)
    shares = models.PositiveIntegerField(
        _("shares"), default=1, help_text=_("Its part of the GPUs over time, against the other teams' shares.")
    )
    placement = models.CharField(_("placement"), max_length=8, choices=Placement.choices, default=Placement.PACK)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, through="Membership", related_name="teams")

    class Meta:
        ordering = ["name"]
        verbose_name = _("team")
        verbose_name_plural = _("teams")

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    class Role(models.TextChoices):
        MEMBER = "member", _("member")  # sees the team's jobs
        LEAD = "lead", _("lead")  # and may stop, hold and release them

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(_("role"), max_length=8, choices=Role.choices, default=Role.MEMBER)
    shares = models.PositiveIntegerField(
        _("shares"), default=1, help_text=_("This member's part of the team's, against the other members' shares.")
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="one_membership_per_team")]
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")

    def __str__(self) -> str:
        return f"{self.user} · {self.team}"


class Quota(models.Model):
    """The limits of one user or one team; with neither, those of every user who has none of their own.

    An empty field sets no limit. A user's quota counts over all teams.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="quota"
    )
    team = models.OneToOneField(Team, on_delete=models.CASCADE, null=True, blank=True, related_name="quota")
    gpus = models.PositiveIntegerField(_("GPUs at once"), null=True, blank=True)
    gpus_by_model = models.JSONField(_("GPUs at once by model"), default=dict, blank=True)  # {model: most}
    guaranteed_gpus = models.PositiveIntegerField(
        _("guaranteed GPUs"), null=True, blank=True,
        help_text=_("Of a team: what it holds beyond this is borrowed, and given back when their owners need it."),
    )  # fmt: skip
    millicpus = models.PositiveIntegerField(_("CPUs at once (thousandths)"), null=True, blank=True)
    memory_mib = models.PositiveIntegerField(_("memory at once (MiB)"), null=True, blank=True)
    running_jobs = models.PositiveIntegerField(_("running jobs"), null=True, blank=True)
    queued_jobs = models.PositiveIntegerField(_("queued jobs"), null=True, blank=True)
    interactive_jobs = models.PositiveIntegerField(_("running interactive jobs"), null=True, blank=True)
    gpu_hours = models.PositiveIntegerField(_("GPU-hours in the window"), null=True, blank=True)
    gpu_hours_soft = models.PositiveIntegerField(
        _("GPU-hours in the window, soft mark"), null=True, blank=True,
        help_text=_("Beyond this, jobs start only after all that are within theirs."),
    )  # fmt: skip
    window_days = models.PositiveSmallIntegerField(
        _("days of the window"), null=True, blank=True, help_text=_("Empty: 30.")
    )
    job_gpus = models.PositiveIntegerField(_("GPUs of the largest job"), null=True, blank=True)
    limit_seconds = models.PositiveIntegerField(_("longest time limit (seconds)"), null=True, blank=True)
    priority = models.PositiveSmallIntegerField(_("highest priority"), choices=Priority.choices, null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(user__isnull=True) | models.Q(team__isnull=True), name="quota_of_one"
            ),
            models.UniqueConstraint(
                models.Value(1),
                condition=models.Q(user__isnull=True, team__isnull=True),
                name="one_default_quota",
            ),
        ]
        verbose_name = _("quota")
        verbose_name_plural = _("quotas")

    def __str__(self) -> str:
        return str(self.user or self.team or _("every user"))

    def validate_constraints(self, exclude: Collection[str] | None = None) -> None:
        """Whose quota it is, in sentences rather than by the names of constraints."""
        if not {"user", "team"} & set(exclude or ()):
            if self.user_id and self.team_id:
                raise ValidationError(_("A quota is that of a user or of a team, not of both."))
            others = Quota.objects.filter(user=None, team=None).exclude(pk=self.pk)
            if not (self.user_id or self.team_id) and others.exists():
                raise ValidationError(_("There is a quota for every user already: change it, or name a user or team."))
        super().validate_constraints(exclude)


class Mount(models.Model):
    """A host directory that jobs may mount at /mnt/<name>. Only an admin names one."""

    name = models.SlugField(_("name"), max_length=40, unique=True)
    source = models.CharField(_("path on the hosts"), max_length=500)
    read_only = models.BooleanField(_("read-only"), default=True)
    teams = models.ManyToManyField(
        Team, blank=True, verbose_name=_("teams"), help_text=_("Empty: every team."), related_name="mounts"
    )

    class Meta:
        ordering = ["name"]
        verbose_name = _("mount")
        verbose_name_plural = _("mounts")

    def __str__(self) -> str:
        return self.name

    @property
    def target(self) -> str:
        return f"/mnt/{self.name}"


class RegistryLogin(models.Model):
    """What nodes log in to an image registry with. The password is encrypted and never shown again."""

    registry = models.CharField(
        _("registry"), max_length=200, unique=True, help_text=_("As in image names; docker.io for Docker Hub.")
    )
    username = models.CharField(_("user name"), max_length=200)
    password_encrypted = models.TextField(editable=False, blank=True)

    class Meta:
        ordering = ["registry"]
        verbose_name = _("registry log-in")
        verbose_name_plural = _("registry log-ins")

    def __str__(self) -> str:
        return self.registry


class Cluster(models.Model):
    """The one row of cluster-wide switches, and the lease of the scheduler whose turn it is."""

    paused = models.BooleanField(
        _("all starts paused"), default=False, help_text=_("Running jobs go on; nothing new starts.")
    )
    pause_reason = models.CharField(_("reason"), max_length=200, blank=True)
    image_patterns = models.TextField(
        _("allowed images"),
        blank=True,
        help_text=_("One pattern a line, such as docker.io/library/* . Empty: every image."),
    )
    half_life_days = models.PositiveSmallIntegerField(
        _("half-life of usage (days)"), default=7, help_text=_("After this, GPU-hours count half in the fair share.")
    )
    lift_after_hours = models.PositiveSmallIntegerField(
        _("lift a class after (hours)"), null=True, blank=True, default=24,
        help_text=_("A job that waited so long is treated as of the next higher priority. Empty: never."),
    )  # fmt: skip
    preempt_lower = models.BooleanField(
        _("higher priority may stop preemptible jobs"), default=False,
        help_text=_("Borrowed GPUs are taken back for their owners in any case."),
    )  # fmt: skip
    protected_minutes = models.PositiveSmallIntegerField(
        _("protected run time (minutes)"), default=10, help_text=_("No job is stopped for another before.")
    )
    defragment = models.BooleanField(
        _("move jobs to make room"), default=False, help_text=_("Only jobs whose owners allow it are moved.")
    )
    extension_hours = models.PositiveSmallIntegerField(
        _("longest extension in spite of others (hours)"), default=0,
        help_text=_("So much more time a job's owner gets although others are delayed."),
    )  # fmt: skip
    scheduler_owner = models.CharField(max_length=100, blank=True, editable=False)
    scheduler_lease_until = models.DateTimeField(null=True, editable=False)
    last_pass_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = _("cluster")
        verbose_name_plural = _("cluster")

    def __str__(self) -> str:
        return "cluster"

    @classmethod
    def get(cls) -> Self:
        """The row, made on first use."""
        row, _created = cls.objects.get_or_create(pk=1)
        return row


class CommandKind(models.TextChoices):
    SCRIPT = "script", _("a script, run by /bin/sh -c")
    IMAGE = "image", _("the image's own entry point, with these arguments")


class Job(models.Model):
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    submission = models.UUIDField(default=uuid.uuid4, editable=False)  # the form's own id: a double post finds its job

    name = models.CharField(_("name"), max_length=100)
    image = models.CharField(_("image"), max_length=300)
    command_kind = models.CharField(max_length=8, choices=CommandKind.choices, default=CommandKind.SCRIPT)
    script = models.TextField(blank=True)
    entrypoint = models.JSONField(default=list, blank=True)  # replaces the image's own where not empty
    arguments = models.JSONField(default=list, blank=True)  # replace the image's CMD where not empty
    gpus = models.PositiveIntegerField(default=0)
    gpu_model = models.CharField(max_length=128, blank=True)  # empty: any
    gpu_memory_mib = models.PositiveIntegerField(default=0)  # at least; 0: any
    gpu_milli = models.PositiveSmallIntegerField(default=1000)  # the share of its one GPU, in thousandths
    gpu_profile = models.CharField(max_length=32, blank=True)  # a MIG profile, such as 1g.10gb; empty: whole GPUs
    least_gpus = models.PositiveIntegerField(null=True, blank=True)  # elastic: starts with as few; None: it is not
    node_labels = models.JSONField(default=list, blank=True)  # ["key=value"]: a host must have all
    millicpus = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    shm_mib = models.PositiveIntegerField()
    limit_seconds = models.PositiveIntegerField(null=True, blank=True)  # None: no limit, by an admin's permission
    grace_seconds = models.PositiveIntegerField(default=30)  # between the signal and SIGKILL
    stop_signal = models.CharField(max_length=16, default="SIGTERM")
    priority = models.PositiveSmallIntegerField(choices=Priority.choices, default=Priority.NORMAL)
    interactive = models.BooleanField(default=False)  # somebody sits before it: counted by a quota of its own
    preemptible = models.BooleanField(default=False)  # may be stopped and started again for others
    movable = models.BooleanField(default=False)  # the scheduler may move it to other GPUs to make room
    environment = models.JSONField(default=dict, blank=True)  # {name: value}
    secrets_encrypted = models.JSONField(default=dict, blank=True)  # {name: Fernet token}
    mounts = models.ManyToManyField(Mount, blank=True, related_name="jobs")
    start_after = models.DateTimeField(null=True, blank=True)
    cloned_from = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="clones")

    state = models.CharField(max_length=12, default=JobState.QUEUED)
    held_by_user = models.BooleanField(default=False)
    held_by_admin = models.BooleanField(default=False)
    pinned = models.BooleanField(default=False)  # by an admin: before all others
    avoid_gpus = models.JSONField(default=list, blank=True)  # UUIDs it is being moved away from, until it is placed
    requeues = models.PositiveSmallIntegerField(default=0)
    wait_reasons = models.JSONField(default=list, blank=True)  # [{code, …numbers}], see jobs.policy.explain
    blocked_since = models.DateTimeField(null=True, blank=True)  # first in line but for room; starts the T of keeping
    expected_earliest = models.DateTimeField(null=True, blank=True)  # when it should start; None: nobody can say
    expected_latest = models.DateTimeField(null=True, blank=True)
    end_reason = models.CharField(max_length=24, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField(default=timezone.now)  # its place in the queue, kept over requeues
    started_at = models.DateTimeField(null=True, blank=True)  # of the current or last run
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["owner", "submission"], name="one_job_per_submission")]
        indexes = [
            models.Index(fields=["state", "-id"], name="job_state"),
            models.Index(fields=["owner", "state", "-id"], name="job_owner_state"),
            models.Index(fields=["owner", "-id"], name="job_owner"),
            models.Index(fields=["team", "-id"], name="job_team"),
            models.Index(fields=["-ended_at", "-id"], name="job_ended"),
        ]
        verbose_name = _("job")
        verbose_name_plural = _("jobs")

    def __str__(self) -> str:
        return f"#{self.pk} {self.name}"

    def get_absolute_url(self) -> str:
        return f"/jobs/{self.pk}/"

    @property
    def is_held(self) -> bool:
        return self.held_by_user or self.held_by_admin

    @property
    def current_run(self) -> "Run | None":
        """The latest run, live or ended; None while the job has never been placed."""
        return self.runs.order_by("-number").first()

    def advance(
        self, old: JobState, new: JobState, *, actor: Any = None, run: "Run | None" = None, event: str = "MOVED",
        params: dict[str, Any] | None = None, **changes: Any,
    ) -> bool:  # fmt: skip
        """Move the job from `old` to `new` by compare-and-swap, with its event, in one transaction.

        `changes` are further columns to set in the same statement. Returns False when the row is no
        longer in `old` (somebody else moved it: look again). Raises IllegalMove for a move no table has.
        """
        check_job_move(old, new)
        with transaction.atomic():
            if not Job.objects.filter(pk=self.pk, state=old).update(state=new, **changes):
                return False
            JobEvent.objects.create(
                job_id=self.pk, run=run, kind=event, old_state=old, new_state=new, actor=actor, params=params or {}
            )
            announce.job_changed(self.pk)
        self.__dict__.update({"state": new, **_plain(changes)})
        return True

    def note(self, kind: str, *, actor: Any = None, run: "Run | None" = None, **params: Any) -> None:
        """Write an event that moves nothing: a wish, a warning, a hold."""
        with transaction.atomic():
            JobEvent.objects.create(job_id=self.pk, run=run, kind=kind, actor=actor, params=params)
            announce.job_changed(self.pk)


class Run(models.Model):
    """One attempt at a job: its own placement, container, log and end."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="runs")
    number = models.PositiveSmallIntegerField()  # 1, 2, … within the job
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="runs")
    state = models.CharField(max_length=12, default=RunState.PLACED)
    placed_at = models.DateTimeField(default=timezone.now)
    starting_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)  # the container's own StartedAt
    stopping_at = models.DateTimeField(null=True)  # SIGTERM sent
    ended_at = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True)  # started_at + limit

    progress = models.JSONField(default=dict)  # while STARTING: {code: pull|create|…, …numbers}
    engine_id = models.CharField(max_length=128, blank=True)
    container_id = models.CharField(max_length=64, blank=True)
    uid = models.PositiveIntegerField(null=True)
    gid = models.PositiveIntegerField(null=True)
    granted = models.JSONField(default=dict)  # read back: {verified: bool, gpus: […], why: …}
    facts = models.JSONField(default=dict)  # image id, limits and network as the engine has them
    warnings = models.JSONField(default=list)  # [{code, …}]: GPU lost, outsider on a GPU, kill stuck

    wish = models.CharField(max_length=16, blank=True)
    wish_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    wish_at = models.DateTimeField(null=True)
    makes_way_for = models.ForeignKey(Job, on_delete=models.SET_NULL, null=True, related_name="made_way_by")

    end_reason = models.CharField(max_length=24, blank=True)
    exit_code = models.IntegerField(null=True)
    oom_killed = models.BooleanField(null=True)
    engine_message = models.TextField(blank=True)  # the daemon's own words, shown folded

    log_generation = models.PositiveSmallIntegerField(default=0)  # rises when a hole is mended: offsets moved
    log_bytes = models.PositiveBigIntegerField(default=0)  # in log storage
    log_complete = models.BooleanField(default=False)
    log_dropped_bytes = models.PositiveBigIntegerField(default=0)  # past the run's limit
    log_holes = models.JSONField(default=list)  # [{stream, offset, reason}]

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["job", "number"], name="one_run_per_number")]
        indexes = [models.Index(fields=["node", "state"], name="run_node_state")]
        verbose_name = _("run")
        verbose_name_plural = _("runs")

    def __str__(self) -> str:
        return f"run {self.number} of job {self.job_id}"

    @property
    def container_name(self) -> str:
        """Deterministic, so that a late or repeated create is found and adopted, never doubled."""
        return f"dockyard-{settings.INSTALLATION}-{self.job_id}-{self.number}"

    @property
    def gpu_uuids(self) -> list[str]:
        """The UUIDs this run was given, in PCI order of the node."""
        slots = AllocationSlot.objects.filter(allocation__run=self).select_related("gpu")
        return list(dict.fromkeys(s.gpu.uuid for s in sorted(slots, key=lambda s: s.gpu.index)))

    def advance(
        self, old: RunState, new: RunState, *, actor: Any = None, event: str = "MOVED",
        params: dict[str, Any] | None = None, job_changes: dict[str, Any] | None = None, **changes: Any,
    ) -> bool:  # fmt: skip
        """Move the run, and its job to the same state, by compare-and-swap in one transaction.

        For every move but the one to ENDED, which `end` makes. Returns False when the row is no longer in `old`.
        """
        check_run_move(old, new)
        with transaction.atomic():
            if not Run.objects.filter(pk=self.pk, state=old).update(state=new, **changes):
                return False
            self.job.advance(
                JOB_STATE_OF_RUN[old], JOB_STATE_OF_RUN[new], actor=actor, run=self, event=event, params=params,
                **(job_changes or {}),
            )  # fmt: skip
        self.__dict__.update({"state": new, **_plain(changes)})
        return True

    def end(
        self, old: RunState, reason: EndReason, job_state: JobState, *, now: datetime, actor: Any = None, **changes: Any
    ) -> bool:
        """End the run, release its allocation and move its job to `job_state`, all in one transaction.

        Who may call: `jobs.finish` with proof that the container is gone, or a revocation of a PLACED run.
        """
        check_run_move(old, RunState.ENDED)
        changes |= {"end_reason": reason, "ended_at": now}
        job_changes: dict[str, Any] = {"end_reason": reason, "exit_code": changes.get("exit_code")}
        if job_state in (JobState.QUEUED, JobState.HELD):
            # A run that was taken back unbegun is no try, nor is one that made room for others.
            tried = int(old is not RunState.PLACED and reason not in FOR_OTHERS)
            job_changes |= {"requeues": models.F("requeues") + tried, "started_at": None, "wait_reasons": []}
        else:
            job_changes |= {"ended_at": now}
        with transaction.atomic():
            if not Run.objects.filter(pk=self.pk, state=old).update(state=RunState.ENDED, **changes):
                return False
            Allocation.objects.filter(run=self, released_at=None).update(released_at=now)
            AllocationSlot.objects.filter(allocation__run=self, released_at=None).update(released_at=now)
            self.job.advance(
                JOB_STATE_OF_RUN[old], job_state, actor=actor, run=self, event="ENDED", params={"reason": str(reason)},
                **job_changes,
            )  # fmt: skip
        self.__dict__.update({"state": RunState.ENDED, **_plain(changes)})
        return True

    @property
    def wished(self) -> Wish | None:
        return Wish(self.wish) if self.wish else None


class Allocation(models.Model):
    """What one run holds on its node, from placing until proof that its container is gone."""

    run = models.OneToOneField(Run, on_delete=models.PROTECT, related_name="allocation")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="allocations")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="allocations")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="allocations")
    gpus = models.PositiveIntegerField()  # of which it holds at least a share
    gpu_milli = models.PositiveIntegerField(default=0)  # what it holds of them altogether, in thousandths
    millicpus = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    released_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["node"], condition=models.Q(released_at=None), name="allocation_live_node"),
            models.Index(fields=["user", "released_at"], name="allocation_user"),
            models.Index(fields=["team", "released_at"], name="allocation_team"),
        ]
        verbose_name = _("allocation")
        verbose_name_plural = _("allocations")

    def __str__(self) -> str:
        return f"{self.gpus} GPUs of run {self.run_id}"


class AllocationSlot(models.Model):
    """One slot of one GPU. The constraint is the last word: no slot has two live holders."""

    allocation = models.ForeignKey(Allocation, on_delete=models.CASCADE, related_name="slots")
    gpu = models.ForeignKey(GPU, on_delete=models.PROTECT, related_name="allocation_slots")
    slot = models.PositiveSmallIntegerField(default=0)
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "slot"], condition=models.Q(released_at=None), name="one_live_holder_per_slot"
            )
        ]
        verbose_name = _("GPU slot")
        verbose_name_plural = _("GPU slots")

    def __str__(self) -> str:
        return f"slot {self.slot} of GPU {self.gpu_id}"


class Estimate(models.Model):
    """When a job was told that it would start, and when it did: what the hit rate is worked out from."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="estimates")
    made_at = models.DateTimeField(default=timezone.now)
    earliest = models.DateTimeField()
    latest = models.DateTimeField(null=True)  # None: nobody could say
    raw_earliest = models.DateTimeField(null=True)  # as planned, before it was corrected by how past ones went
    raw_latest = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)  # its GPUs were given; None: it waits still, or was cancelled

    class Meta:
        indexes = [
            models.Index(fields=["started_at"], name="estimate_started"),
            models.Index(fields=["job", "-id"], name="estimate_job"),
        ]
        verbose_name = _("estimate")
        verbose_name_plural = _("estimates")

    def __str__(self) -> str:
        return f"start of job {self.job_id}, said at {self.made_at:%Y-%m-%d %H:%M}"


class WhatIf(models.Model):
    """A question of an admin: how long would the jobs of the last days have waited under other rules?"""

    class State(models.TextChoices):
        ASKED = "asked", _("waits for the scheduler's host")
        RUNNING = "running", _("is being worked out")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    asked_at = models.DateTimeField(default=timezone.now)
    days = models.PositiveSmallIntegerField()
    changes = models.JSONField(default=dict)  # see jobs.whatif.Changes
    state = models.CharField(max_length=8, choices=State.choices, default=State.ASKED)
    progress = models.PositiveSmallIntegerField(default=0)  # percent
    heard_at = models.DateTimeField(null=True)  # who works it out, was last heard of
    result = models.JSONField(default=dict)  # see jobs.whatif.compare
    message = models.TextField(blank=True)  # why it failed

    class Meta:
        ordering = ["-id"]
        verbose_name = _("what-if")
        verbose_name_plural = _("what-ifs")

    def __str__(self) -> str:
        return f"what-if of {self.asked_at:%Y-%m-%d %H:%M}"


class UsageDay(models.Model):
    """GPU-seconds of one member in one team on one closed day (UTC): a sum of allocations, rebuildable from them."""

    day = models.DateField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    gpu_seconds = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "user", "team"], name="one_usage_per_day")]
        verbose_name = _("usage of a day")
        verbose_name_plural = _("usage of days")

    def __str__(self) -> str:
        return f"{self.gpu_seconds:.0f} GPU-seconds on {self.day}"


class JobEvent(models.Model):
    """The journal: every move and every wish, in order. Append-only."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, null=True, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=24)  # MOVED, ENDED, SUBMITTED, WISHED, HELD, RELEASED, WARNED, …
    old_state = models.CharField(max_length=12, blank=True)
    new_state = models.CharField(max_length=12, blank=True)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    params = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"], name="event_job")]
        verbose_name = _("job event")
        verbose_name_plural = _("job events")

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_id}"


class LogSegment(models.Model):
    """An immutable piece of a run's log in log storage: raw bytes [offset, offset + length)."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="segments")
    generation = models.PositiveSmallIntegerField(default=0)
    offset = models.PositiveBigIntegerField()
    length = models.PositiveIntegerField()
    name = models.CharField(max_length=200)  # in STORAGES["logs"]
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["offset"]
        constraints = [models.UniqueConstraint(fields=["run", "generation", "offset"], name="one_segment_per_offset")]
        verbose_name = _("log segment")
        verbose_name_plural = _("log segments")

    def __str__(self) -> str:
        return f"[{self.offset}, {self.offset + self.length}) of run {self.run_id}"
