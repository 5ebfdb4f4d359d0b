"""What admins set: teams and who is in them, quotas, mounts, registries, and the cluster's switches."""

from collections.abc import Collection
from typing import Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs import egress
from jobs.policy.weights import Weights


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
    members = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="Membership", related_name="teams", verbose_name=_("members")
    )

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

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships", verbose_name=_("team"))
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships", verbose_name=_("user")
    )
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
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="quota",
        verbose_name=_("user"),
    )  # fmt: skip
    team = models.OneToOneField(
        Team, on_delete=models.CASCADE, null=True, blank=True, related_name="quota", verbose_name=_("team")
    )
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


class Egress(models.TextChoices):
    OPEN = egress.OPEN, _("whatever their host reaches")
    LISTED = egress.LISTED, _("only the listed networks")
    NOTHING = egress.NOTHING, _("nothing: jobs have no network")


class Cluster(models.Model):
    """The one row of cluster-wide switches, and the lease of the scheduler whose turn it is."""

    paused = models.BooleanField(
        _("all starts paused"), default=False, help_text=_("Running jobs go on; nothing new starts.")
    )
    pause_reason = models.CharField(_("reason"), max_length=200, blank=True)
    image_patterns = models.TextField(
        _("allowed images"),
        blank=True,
        help_text=_(
            "One pattern a line, such as docker.io/library/* . Empty: every image. "
            "Running jobs go on; a waiting job with another image does not start, and its owner is told why."
        ),
    )
    egress = models.CharField(
        _("jobs reach"), max_length=8, choices=Egress.choices, default=Egress.OPEN,
        db_default=Egress.OPEN,
        help_text=_("Never their host, each other, or the portal's Redis and database. Takes hold within seconds."),
    )  # fmt: skip
    egress_networks = models.TextField(
        _("listed networks"), blank=True, db_default="",
        help_text=_("IPv4 networks or addresses, one a line, such as 10.1.0.0/16."),
    )  # fmt: skip
    half_life_days = models.PositiveSmallIntegerField(
        _("half-life of usage (days)"), default=7, help_text=_("After this, GPU-hours count half in the fair share.")
    )
    # {model: what a GPU of it counts in fair share}; others count 1
    gpu_weights = models.JSONField(_("weight of a GPU by model"), default=dict, blank=True)
    cpu_weight = models.FloatField(
        _("weight of a CPU"), default=0, validators=[MinValueValidator(0), MaxValueValidator(1000)],
        help_text=_("In GPUs; 0.0625 where a host has 16 CPUs for each GPU. 0: CPUs do not count."),
    )  # fmt: skip
    memory_weight = models.FloatField(
        _("weight of a GiB of memory"), default=0, validators=[MinValueValidator(0), MaxValueValidator(1000)],
        help_text=_("In GPUs. Of GPUs, CPUs and memory, what counts most is what a job is charged. 0: it does not."),
    )  # fmt: skip
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
    last_pass_at = models.DateTimeField(_("last pass of the scheduler"), null=True, editable=False)

    class Meta:
        verbose_name = _("cluster")
        verbose_name_plural = _("cluster")

    def __str__(self) -> str:
        return "cluster"

    @property
    def weights(self) -> Weights:
        """What counts how much in fair share."""
        return Weights(models=self.gpu_weights, cpu=self.cpu_weight, memory=self.memory_weight)

    @classmethod
    def get(cls) -> Self:
        """The row, made on first use."""
        row, _created = cls.objects.get_or_create(pk=1)
        return row
