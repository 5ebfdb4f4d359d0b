"""Hardware as the nodes report it. Knows nothing of jobs."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from gpus.readings import short_uuid


class Node(models.Model):
    """A GPU host: one `manage.py node`, one Docker engine. Its agent writes everything but the admin's wishes."""

    class GpuStatus(models.TextChoices):
        """What NVML said about the host as a whole."""

        UNKNOWN = "unknown", _("not sampled yet")
        OK = "ok", _("working")
        SIMULATED = "simulated", _("simulated GPUs")
        NO_LIBRARY = "no_library", _("no NVIDIA driver library on this host")
        NO_DRIVER = "no_driver", _("the NVIDIA driver is not loaded")
        NO_GPU = "no_gpu", _("no GPU in this host")
        DRIVER_MISMATCH = "driver_mismatch", _("driver and library versions differ: reboot needed")
        HUNG = "hung", _("GPU telemetry does not answer")
        ERROR = "error", _("GPU telemetry failed")

    name = models.SlugField(_("name"), max_length=40, unique=True)
    hostname = models.CharField(_("host name"), max_length=255, blank=True)
    engine_id = models.CharField(_("engine ID"), max_length=128, blank=True)
    engine_version = models.CharField(_("engine version"), max_length=64, blank=True)
    engine_error = models.TextField(_("engine error"), blank=True)  # empty: the engine answers
    driver_version = models.CharField(_("driver version"), max_length=64, blank=True)
    gpu_status = models.CharField(_("GPU status"), max_length=20, choices=GpuStatus.choices, default=GpuStatus.UNKNOWN)
    gpu_message = models.TextField(_("GPU message"), blank=True)
    agent_version = models.CharField(_("agent version"), max_length=32, blank=True)
    millicpus = models.PositiveIntegerField(_("CPUs (thousandths)"), default=0)  # of the host
    memory_mib = models.PositiveIntegerField(_("memory (MiB)"), default=0)  # of the host
    reserved_millicpus = models.PositiveIntegerField(_("CPUs kept for the host (thousandths)"), default=0)
    reserved_memory_mib = models.PositiveIntegerField(_("memory kept for the host (MiB)"), default=0)
    labels = models.JSONField(_("labels"), default=dict, blank=True)
    cordoned = models.BooleanField(_("cordoned"), default=False, help_text=_("No new job starts on this node."))
    cordon_reason = models.CharField(_("reason"), max_length=200, blank=True)
    first_seen = models.DateTimeField(_("first seen"), auto_now_add=True)
    # by the database's or the node's clock: see heartbeat
    last_seen = models.DateTimeField(_("last seen"), null=True, blank=True)
    # {system, kernel, toolkit, clock_skew: seconds from Redis's, disks: [{what, path, free_mib, total_mib}]}
    facts = models.JSONField(_("facts"), null=True, blank=True)
    # by an admin while it was silent; it takes no job until its agent has seen to what ran there
    declared_dead_at = models.DateTimeField(_("declared dead"), null=True, blank=True)
    left_at = models.DateTimeField(_("left"), null=True, blank=True)  # an admin took its access away

    class Meta:
        ordering = ["name"]
        verbose_name = _("node")
        verbose_name_plural = _("nodes")

    def __str__(self) -> str:
        return self.name

    def is_alive(self, now: datetime | None = None) -> bool:
        """Whether the agent was heard of within NODE_SILENT_AFTER."""
        if self.last_seen is None:
            return False
        return (now or timezone.now()) - self.last_seen < timedelta(seconds=settings.NODE_SILENT_AFTER)

    def full_disk(self) -> dict[str, Any] | None:
        """Of its disks that jobs and their logs fill, as in `facts`, one with less than DISK_RESERVE_MIB free."""
        disks = (self.facts or {}).get("disks", ())
        return next((disk for disk in disks if disk["free_mib"] < settings.DISK_RESERVE_MIB), None)


class HostAccess(models.Model):
    """What one host may log in with: its own Redis user and PostgreSQL role. Passwords are known to the host alone."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="access", verbose_name=_("node"))
    redis_user = models.CharField(max_length=128)
    redis_digest = models.CharField(max_length=64)  # SHA-256 of its password, from which a user can be made again
    database_role = models.CharField(max_length=63, blank=True)  # empty: of an installation on SQLite
    joined_at = models.DateTimeField(_("joined"))
    joined_from = models.GenericIPAddressField(_("joined from"), null=True, blank=True)

    class Meta:
        verbose_name = _("access of a host")
        verbose_name_plural = _("access of hosts")

    def __str__(self) -> str:
        return f"access of {self.node}"


class JoinToken(models.Model):
    """What one host may join with, once and soon: only its SHA-256 is kept."""

    digest = models.CharField(max_length=64, unique=True, editable=False)
    hint = models.CharField(_("hint"), max_length=12, editable=False)
    # for the host of this name alone, also if it has joined before; empty: for any new one
    name = models.SlugField(_("name"), max_length=40, blank=True)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"))
    expires_at = models.DateTimeField(_("expires"))
    used_at = models.DateTimeField(_("used"), null=True)

    class Meta:
        ordering = ["-id"]
        verbose_name = _("join token")
        verbose_name_plural = _("join tokens")

    def __str__(self) -> str:
        return f"{self.hint}…"


class HostEvent(models.Model):
    """What befell a host: it joined, fell silent, was heard of again, was closed, lost its engine. Append-only."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(_("time"), default=timezone.now)
    kind = models.CharField(max_length=24)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+", verbose_name=_("by")
    )
    params = models.JSONField(default=dict)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["node", "-id"], name="host_event_node")]
        verbose_name = _("host event")
        verbose_name_plural = _("host events")

    def __str__(self) -> str:
        return f"{self.kind} of {self.node_id}"


class GPU(models.Model):
    """One GPU as NVML reports it, keyed by UUID. Inventory is never typed by hand: an admin hides, never adds."""

    class Health(models.TextChoices):
        UNKNOWN = "unknown", _("not sampled yet")
        OK = "ok", _("healthy")
        LOST = "lost", _("lost: fallen off the bus")
        MISSING = "missing", _("no longer reported by the driver")
        ERROR = "error", _("telemetry error")
        SPLIT = "split", _("split into MIG instances, which are listed instead")

    uuid = models.CharField(_("UUID"), max_length=96, unique=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus", verbose_name=_("node"))
    index = models.PositiveIntegerField(_("index"))
    pci_bus_id = models.CharField(_("PCI bus ID"), max_length=32, blank=True)
    model = models.CharField(_("model"), max_length=128, blank=True)
    # None: shared with the system, or not reported
    memory_mib = models.PositiveIntegerField(_("memory (MiB)"), null=True, blank=True)
    profile = models.CharField(_("MIG profile"), max_length=32, blank=True)  # of a MIG instance, such as 1g.10gb
    numa = models.SmallIntegerField(_("NUMA node"), null=True, blank=True)  # None: not known
    # joined by NVLink within the host; None: not known
    island = models.SmallIntegerField(_("NVLink island"), null=True, blank=True)
    slots = models.PositiveSmallIntegerField(
        _("slots"), default=1, help_text=_("How many jobs may share it. A job takes as many slots as its share needs.")
    )
    hidden = models.BooleanField(_("hidden"), default=False, help_text=_("Not offered to jobs."))
    quarantine_reason = models.CharField(_("quarantined because"), max_length=200, blank=True)
    health = models.CharField(_("health"), max_length=12, choices=Health.choices, default=Health.UNKNOWN)
    health_message = models.CharField(_("health message"), max_length=300, blank=True)
    # last good reading; refreshed every few seconds
    sampled_at = models.DateTimeField(_("last reading"), null=True, blank=True)
    # [{pid, user, name, memory_mib|null, container}]
    outsiders = models.JSONField(_("processes from outside"), default=list, blank=True)
    busy_outside_since = models.DateTimeField(_("busy from outside since"), null=True, blank=True)
    # since the last outsider was seen
    clean_samples = models.PositiveSmallIntegerField(_("good readings since"), default=0)

    class Meta:
        ordering = ["node__name", "index"]
        verbose_name = _("GPU")
        verbose_name_plural = _("GPUs")

    def __str__(self) -> str:
        return f"{self.node.name}/{self.index} {self.model} ({self.short_uuid})"

    @property
    def short_uuid(self) -> str:
        """Enough of the UUID to tell two cards of one name apart on a page."""
        return short_uuid(self.uuid)


class GPUMinute(models.Model):
    """The means of one GPU over one minute: history and charts after Redis has forgotten the seconds."""

    gpu = models.ForeignKey(GPU, on_delete=models.CASCADE, related_name="minutes")
    minute = models.DateTimeField()  # its start, UTC
    utilisation = models.FloatField(null=True)  # percent
    memory_mib = models.FloatField(null=True)
    power_w = models.FloatField(null=True)
    temperature_c = models.FloatField(null=True)
    sm_clock_mhz = models.FloatField(null=True)
    mem_clock_mhz = models.FloatField(null=True)
    throttle = models.PositiveSmallIntegerField(null=True)  # all reasons seen, see readings.throttle_mask

    class Meta:
        constraints = [models.UniqueConstraint(fields=["gpu", "minute"], name="one_row_per_gpu_minute")]
        verbose_name = _("GPU minute")
        verbose_name_plural = _("GPU minutes")

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} of GPU {self.gpu_id}"


class ContainerMinute(models.Model):
    """The means of one run's container over one minute. `run` is its number as the node's claims say it."""

    run = models.BigIntegerField()
    minute = models.DateTimeField()  # its start, UTC
    cpu_percent = models.FloatField(null=True)  # of one core
    memory_mib = models.FloatField(null=True)
    memory_max_mib = models.FloatField(null=True)
    read_kib_s = models.FloatField(null=True)
    written_kib_s = models.FloatField(null=True)
    received_kib_s = models.FloatField(null=True)
    sent_kib_s = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "minute"], name="one_row_per_container_minute")]
        indexes = [models.Index(fields=["minute"], name="container_minute")]
        verbose_name = _("container minute")
        verbose_name_plural = _("container minutes")

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} of run {self.run}"


class RunUse(models.Model):
    """What one run has used over its life so far, see `minutes.Use`. Kept for good: receipts are written from it."""

    run = models.BigIntegerField(primary_key=True)
    seconds = models.FloatField(default=0)
    cpu_seconds = models.FloatField(default=0)
    cpu_known_seconds = models.FloatField(default=0)
    cpu_percent_max = models.FloatField(null=True)
    memory_max_mib = models.PositiveIntegerField(null=True)
    read_mib = models.FloatField(default=0)
    written_mib = models.FloatField(default=0)
    received_mib = models.FloatField(default=0)
    sent_mib = models.FloatField(default=0)
    gpu_known_seconds = models.FloatField(default=0)
    gpu_busy_seconds = models.FloatField(default=0)
    gpu_idle_seconds = models.FloatField(default=0)
    gpus_busy_max = models.PositiveSmallIntegerField(null=True)
    gpu_memory_max_mib = models.PositiveIntegerField(null=True)
    energy_j = models.FloatField(null=True)
    throttled_seconds = models.FloatField(default=0)

    class Meta:
        verbose_name = _("use by a run")
        verbose_name_plural = _("use by runs")

    def __str__(self) -> str:
        return f"use by run {self.run}"
