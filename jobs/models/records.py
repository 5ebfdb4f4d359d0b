"""What is kept about jobs and people: pieces of logs, forecasts and questions, days of use."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpus.models import Node
from jobs.models.rules import Team
from jobs.models.work import Job, Run


class LogSegment(models.Model):
    """An immutable piece of a run's log in log storage: raw bytes [offset, offset + length)."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="segments")
    generation = models.PositiveSmallIntegerField(default=0)
    offset = models.PositiveBigIntegerField()
    length = models.PositiveIntegerField()
    name = models.CharField(max_length=200)  # in STORAGES["logs"]
    lines = models.PositiveIntegerField(null=True)  # newlines in it; None: not counted yet
    marks = models.BinaryField(null=True)  # see jobs.logmarks; None: nothing was recorded
    packed = models.JSONField(null=True)  # sizes of its gzip members, see jobs.packing; None: raw; []: raw for good
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["offset"]
        constraints = [models.UniqueConstraint(fields=["run", "generation", "offset"], name="one_segment_per_offset")]
        indexes = [models.Index(fields=["id"], condition=models.Q(packed__isnull=True), name="segment_raw")]
        verbose_name = _("log segment")
        verbose_name_plural = _("log segments")

    def __str__(self) -> str:
        return f"[{self.offset}, {self.offset + self.length}) of run {self.run_id}"


class RunMetrics(models.Model):
    """The numbers that a run's program printed of itself, thinned out: see jobs.metrics."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, related_name="metrics")
    series = models.JSONField(default=list)  # [{name, points: [[seconds since 1970, step|null, value], …]}]

    class Meta:
        verbose_name = _("metrics of a run")
        verbose_name_plural = _("metrics of runs")

    def __str__(self) -> str:
        return f"metrics of run {self.run_id}"


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
    charged_seconds = models.FloatField(null=True)  # as they counted in fair share then; None: as they are

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "user", "team"], name="one_usage_per_day")]
        verbose_name = _("usage of a day")
        verbose_name_plural = _("usage of days")

    def __str__(self) -> str:
        return f"{self.gpu_seconds:.0f} GPU-seconds on {self.day}"


class HostDay(models.Model):
    """GPU-seconds that one host's GPUs were held on one closed day (UTC): a sum of allocations, as `UsageDay` is."""

    day = models.DateField()
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    gpu_seconds = models.FloatField()
    # primary keys of the allocations that were held there as the day began; None: an older version has not told
    held_over = models.JSONField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "node"], name="one_host_per_day")]
        verbose_name = _("day of a host")
        verbose_name_plural = _("days of hosts")

    def __str__(self) -> str:
        return f"{self.gpu_seconds:.0f} GPU-seconds on {self.day}"
