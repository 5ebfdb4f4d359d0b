"""What people ask for and what became of it. `Job.advance` and `Run.advance` are the only writers of states."""

import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models, transaction
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from gpus.models import GPU, Node
from jobs import announce
from jobs.models.rules import Mount, Priority, Team
from jobs.states import (
    FOR_OTHERS,
    JOB_STATE_OF_RUN,
    EndReason,
    JobState,
    RunState,
    Wish,
    check_job_move,
    check_run_move,
    known_wish,
)


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes whose values are known here: not those that the database computes."""
    return {name: value for name, value in changes.items() if not hasattr(value, "resolve_expression")}


class CommandKind(models.TextChoices):
    SCRIPT = "script", _("a script, run by /bin/sh -c")
    IMAGE = "image", _("the image's own entry point, with these arguments")


class Job(models.Model):
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", verbose_name=_("owner")
    )
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs", verbose_name=_("team"))
    # the form's own id: a double post finds its job
    submission = models.UUIDField(_("submission"), default=uuid.uuid4, editable=False)

    name = models.CharField(_("name"), max_length=100)
    image = models.CharField(_("image"), max_length=300)
    command_kind = models.CharField(_("command"), max_length=8, choices=CommandKind.choices, default=CommandKind.SCRIPT)
    script = models.TextField(_("script"), blank=True)
    # replaces the image's own where not empty
    entrypoint = models.JSONField(_("entry point"), default=list, blank=True)
    arguments = models.JSONField(_("arguments"), default=list, blank=True)  # replace the image's CMD where not empty
    gpus = models.PositiveIntegerField(_("GPUs"), default=0)
    gpu_model = models.CharField(_("GPU model"), max_length=128, blank=True)  # empty: any
    gpu_memory_mib = models.PositiveIntegerField(_("GPU memory, at least (MiB)"), default=0)  # at least; 0: any
    # the share of its one GPU, in thousandths
    gpu_milli = models.PositiveSmallIntegerField(_("share of the GPU (thousandths)"), default=1000)
    # a MIG profile, such as 1g.10gb; empty: whole GPUs
    gpu_profile = models.CharField(_("MIG profile"), max_length=32, blank=True)
    # elastic: starts with as few; None: it is not
    least_gpus = models.PositiveIntegerField(_("GPUs, at least"), null=True, blank=True)
    node_labels = models.JSONField(_("node labels"), default=list, blank=True)  # ["key=value"]: a host must have all
    millicpus = models.PositiveIntegerField(_("CPUs (thousandths)"))
    memory_mib = models.PositiveIntegerField(_("memory (MiB)"))
    shm_mib = models.PositiveIntegerField(_("shared memory (MiB)"))
    # None: no limit, by an admin's permission
    limit_seconds = models.PositiveIntegerField(_("time limit (seconds)"), null=True, blank=True)
    # between the signal and SIGKILL
    grace_seconds = models.PositiveIntegerField(_("time to finish (seconds)"), default=30)
    stop_signal = models.CharField(_("stop signal"), max_length=16, default="SIGTERM")
    priority = models.PositiveSmallIntegerField(_("priority"), choices=Priority.choices, default=Priority.NORMAL)
    # somebody sits before it: counted by a quota of its own
    interactive = models.BooleanField(_("interactive"), default=False)
    preemptible = models.BooleanField(_("preemptible"), default=False)  # may be stopped and started again for others
    movable = models.BooleanField(_("movable"), default=False)  # the scheduler may move it to other GPUs to make room
    offline = models.BooleanField(_("without network"), default=False, db_default=False)
    environment = models.JSONField(_("environment variables"), default=dict, blank=True)  # {name: value}
    secrets_encrypted = models.JSONField(default=dict, blank=True)  # {name: Fernet token}
    mounts = models.ManyToManyField(Mount, blank=True, related_name="jobs", verbose_name=_("mounts"))
    start_after = models.DateTimeField(_("start after"), null=True, blank=True)
    # from its owner's own hold: lifts count from there
    released_at = models.DateTimeField(_("released"), null=True, editable=False)
    cloned_from = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="clones", verbose_name=_("cloned from")
    )

    state = models.CharField(max_length=12, default=JobState.QUEUED)
    held_by_user = models.BooleanField(_("on hold by its owner"), default=False)
    held_by_admin = models.BooleanField(_("on hold by an administrator"), default=False)
    pinned = models.BooleanField(_("pinned"), default=False)  # by an admin: before all others
    # UUIDs it is being moved away from, until it is placed
    avoid_gpus = models.JSONField(_("GPUs to avoid"), default=list, blank=True)
    requeues = models.PositiveSmallIntegerField(_("requeued so often"), default=0)
    wait_reasons = models.JSONField(default=list, blank=True)  # [{code, …numbers}], see jobs.policy.explain
    # first in line but for room; starts the T of keeping
    blocked_since = models.DateTimeField(_("first in line since"), null=True, blank=True)
    # the host that is kept for it, and from when on at the latest; None: nobody can say
    kept_node = models.ForeignKey(
        Node, on_delete=models.SET_NULL, null=True, blank=True, editable=False, db_index=False, related_name="+"
    )
    kept_from = models.DateTimeField(null=True, blank=True, editable=False)
    # when it should start; None: nobody can say
    expected_earliest = models.DateTimeField(_("expected start, earliest"), null=True, blank=True)
    expected_latest = models.DateTimeField(_("expected start, latest"), null=True, blank=True)
    end_reason = models.CharField(max_length=24, blank=True)
    exit_code = models.IntegerField(_("exit code"), null=True, blank=True)
    created_at = models.DateTimeField(_("submitted"), default=timezone.now)
    # its place in the queue, kept over requeues
    queued_at = models.DateTimeField(_("in line since"), default=timezone.now)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)  # of the current or last run
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    # what only its own page and its start look at: left out where many are read, for a script may be long
    BODY = ("script", "entrypoint", "arguments", "environment", "secrets_encrypted")

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["owner", "submission"], name="one_job_per_submission")]
        indexes = [
            models.Index(fields=["state", "-id"], name="job_state"),
            models.Index(fields=["end_reason", "-ended_at", "-id"], name="job_end_reason"),
            # Each order of a list, for all jobs, for an owner's and for a team's: see jobs.access.visible_parts.
            models.Index(fields=["-ended_at", "-id"], name="job_ended"),
            models.Index(fields=["name", "id"], name="job_name"),
            models.Index(fields=["-gpus", "-id"], name="job_gpus"),
            models.Index(fields=["owner", "-id"], name="job_owner"),
            models.Index(fields=["owner", "state", "-id"], name="job_owner_state"),
            models.Index(fields=["owner", "-ended_at", "-id"], name="job_owner_ended"),
            models.Index(fields=["owner", "name", "id"], name="job_owner_name"),
            models.Index(fields=["owner", "-gpus", "-id"], name="job_owner_gpus"),
            models.Index(fields=["team", "-id"], name="job_team"),
            models.Index(fields=["team", "state", "-id"], name="job_team_state"),
            models.Index(fields=["team", "-ended_at", "-id"], name="job_team_ended"),
            models.Index(fields=["team", "name", "id"], name="job_team_name"),
            models.Index(fields=["team", "-gpus", "-id"], name="job_team_gpus"),
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
        with transaction.atomic(savepoint=False):
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
        with transaction.atomic(savepoint=False):
            JobEvent.objects.create(job_id=self.pk, run=run, kind=kind, actor=actor, params=params)
            announce.job_changed(self.pk)


class Run(models.Model):
    """One attempt at a job: its own placement, container, log and end."""

    IDLE = "GPUS_IDLE"  # the code of the warning that is taken back once it no longer holds

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="runs")
    number = models.PositiveSmallIntegerField(_("number"))  # 1, 2, … within the job
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="runs", verbose_name=_("node"))
    state = models.CharField(max_length=12, default=RunState.PLACED)
    placed_at = models.DateTimeField(_("placed"), default=timezone.now)
    starting_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(_("started"), null=True)  # the container's own StartedAt
    stopping_at = models.DateTimeField(null=True)  # the grace period began
    signalled_at = models.DateTimeField(null=True)  # the engine took the job's stop signal; None: not known to
    ended_at = models.DateTimeField(_("ended"), null=True)
    deadline = models.DateTimeField(null=True)  # started_at + limit

    progress = models.JSONField(default=dict)  # while STARTING: {code: pull|create|…, …numbers}
    # how far its program says that it is: {fraction, label, done, total, left: seconds|null, at}, see jobs.progress
    output_progress = models.JSONField(null=True)
    engine_id = models.CharField(max_length=128, blank=True)
    container_id = models.CharField(_("container ID"), max_length=64, blank=True)
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
    exit_code = models.IntegerField(_("exit code"), null=True)
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
        indexes = [
            models.Index(fields=["node", "state"], name="run_node_state"),
            models.Index(fields=["-ended_at", "-id"], name="run_ended"),
        ]
        verbose_name = _("run")
        verbose_name_plural = _("runs")

    def __str__(self) -> str:
        return f"run {self.number} of job {self.job_id}"

    @property
    def container_name(self) -> str:
        """Deterministic, so that a late or repeated create is found and adopted, never doubled."""
        return f"dockyard-{settings.INSTALLATION}-{self.job_id}-{self.number}"

    @cached_property
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
        with transaction.atomic(savepoint=False):
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

        Who may call: `jobs.finish` with proof that the container is gone, or a revocation of a PLACED run;
        `jobs.declaredead` without proof, by a named admin.
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
        with transaction.atomic(savepoint=False):
            if not Run.objects.filter(pk=self.pk, state=old).update(state=RunState.ENDED, **changes):
                return False
            Allocation.objects.filter(run=self, released_at=None).update(released_at=now)
            AllocationSlot.objects.filter(allocation__run=self, released_at=None).update(released_at=now)
            self.job.advance(
                JOB_STATE_OF_RUN[old], job_state, actor=actor, run=self, event="ENDED",
                params={"reason": str(reason), **self._resized(reason)}, **job_changes,
            )  # fmt: skip
        self.__dict__.update({"state": RunState.ENDED, **_plain(changes)})
        return True

    def _resized(self, reason: EndReason) -> dict[str, Any]:
        """The number of GPUs that the job goes on with, where it was stopped for that."""
        gpus = self.resized_to if reason == EndReason.REBOUND else None
        return {} if gpus is None else {"gpus": gpus}

    @property
    def resized_to(self) -> int | None:
        """With how many GPUs its elastic job was asked to go on, if that is why the run was to end; by the journal."""
        if self.job.least_gpus is None:
            return None
        wished = self.events.filter(kind="WISHED", params__wish=Wish.REBIND, params__has_key="gpus").last()
        return wished.params["gpus"] if wished else None

    @property
    def idle_warning(self) -> dict[str, Any] | None:
        """The warning that its GPUs do nothing: `since`, and `stops_at` or None, as ISO text; None without one."""
        return next((found for found in self.warnings if found["code"] == self.IDLE), None)

    @property
    def wished(self) -> Wish | None:
        return known_wish(self.wish)


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
            models.Index(fields=["released_at", "created_at"], name="allocation_released"),
            models.Index(fields=["created_at"], name="allocation_created"),
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


class JobEvent(models.Model):
    """The journal: every move and every wish, in order. Append-only."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, null=True, related_name="events")
    at = models.DateTimeField(_("time"), default=timezone.now)
    kind = models.CharField(max_length=24)  # MOVED, ENDED, SUBMITTED, WISHED, HELD, RELEASED, WARNED, …
    old_state = models.CharField(max_length=12, blank=True)
    new_state = models.CharField(max_length=12, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+", verbose_name=_("by")
    )
    params = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["job", "id"], name="event_job")]
        verbose_name = _("job event")
        verbose_name_plural = _("job events")

    def __str__(self) -> str:
        return f"{self.kind} of job {self.job_id}"
