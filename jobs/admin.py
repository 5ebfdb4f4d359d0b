"""Teams, limits, mounts, registries and the cluster's switches for admins; jobs to read. No secret is ever shown."""

import os
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import secretbox, wording
from jobs.models import Cluster, Job, JobEvent, Membership, Mount, Quota, RegistryLogin, Run, Team
from jobs.queues import wake_scheduler


class WakesScheduler(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows whose change may let jobs start: the scheduler looks at once."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(wake_scheduler, robust=True)


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Membership
    extra = 1
    autocomplete_fields = ("user",)


class QuotaInline(admin.StackedInline):  # type: ignore[type-arg]
    model = Quota
    extra = 0
    max_num = 1
    exclude = ("user",)


@admin.register(Team)
class TeamAdmin(WakesScheduler):
    list_display = ("name", "people")
    search_fields = ("name",)
    inlines = (MembershipInline, QuotaInline)

    @admin.display(description=_("members"))
    def people(self, team: Team) -> str:
        return ", ".join(sorted(member.username for member in team.members.all()))

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("members")

    def has_delete_permission(self, request: HttpRequest, obj: Team | None = None) -> bool:
        """A team with jobs stays: history names it."""
        return super().has_delete_permission(request, obj) and (obj is None or not obj.jobs.exists())


class QuotaForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Quota
        fields = ("user", "team", "gpus", "millicpus", "memory_mib", "running_jobs", "queued_jobs", "gpu_hours",
                  "job_gpus", "limit_seconds", "priority")  # fmt: skip
        help_texts = {"user": _("With neither user nor team: for every user who has no quota of their own.")}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("user") and cleaned.get("team"):
            raise ValidationError(_("A quota is that of a user or of a team, not of both."))
        return cleaned


@admin.register(Quota)
class QuotaAdmin(WakesScheduler):
    form = QuotaForm
    list_display = ("__str__", "gpus", "cpus", "memory", "running_jobs", "queued_jobs", "gpu_hours", "job_gpus",
                    "longest", "priority")  # fmt: skip
    list_select_related = ("user", "team")
    autocomplete_fields = ("user", "team")
    search_fields = ("user__username", "team__name")

    @admin.display(description=_("CPUs"))
    def cpus(self, quota: Quota) -> str:
        return "–" if quota.millicpus is None else wording.cpus(quota.millicpus)

    @admin.display(description=_("memory"))
    def memory(self, quota: Quota) -> str:
        return "–" if quota.memory_mib is None else wording.memory(quota.memory_mib)

    @admin.display(description=_("longest time limit"))
    def longest(self, quota: Quota) -> str:
        return "–" if quota.limit_seconds is None else wording.duration(quota.limit_seconds)


def mount_problem(source: str) -> str | None:
    """What forbids mounting this host path into jobs, as a sentence; None when nothing does.

    Links are followed first where the path exists on this machine; each host looks again before every start.
    """
    if not os.path.isabs(source) or ":" in source or "\0" in source:
        return gettext("Give an absolute path without a colon.")
    real = os.path.realpath(source)
    if os.path.basename(real) in ("docker.sock", "containerd.sock", "podman.sock") or os.path.isfile(real):
        return gettext("Only directories can be mounted, and never the socket of an engine.")
    roots = [os.path.realpath(root) for root in settings.MOUNT_ROOTS]
    if not any(real != "/" and root != "/" and os.path.commonpath([real, root]) == root for root in roots):
        return gettext("This leads to %(real)s, outside the roots that are allowed (%(roots)s).") % {
            "real": real, "roots": ", ".join(settings.MOUNT_ROOTS)
        }  # fmt: skip
    return None


class MountForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean_source(self) -> str:
        source: str = self.cleaned_data["source"]
        problem = mount_problem(source)
        if problem:
            raise ValidationError(problem, code="MOUNT")
        return os.path.normpath(source)


@admin.register(Mount)
class MountAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = MountForm
    list_display = ("name", "target", "source", "read_only")
    list_filter = ("read_only",)
    filter_horizontal = ("teams",)


class RegistryLoginForm(forms.ModelForm):  # type: ignore[type-arg]
    """The password goes in and never comes out: an empty box keeps the one there is."""

    password = forms.CharField(
        label=_("Password"), required=False, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        strip=False, help_text=_("Encrypted, never shown again. Empty: as it was."),
    )  # fmt: skip

    class Meta:
        model = RegistryLogin
        fields = ("registry", "username", "password")

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        if not password and not self.instance.password_encrypted:
            raise ValidationError(_("A new log-in needs its password."))
        return password

    def save(self, commit: bool = True) -> Any:
        if self.cleaned_data["password"]:
            self.instance.password_encrypted = secretbox.seal(self.cleaned_data["password"])
        return super().save(commit)


@admin.register(RegistryLogin)
class RegistryLoginAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = RegistryLoginForm
    list_display = ("registry", "username")


@admin.register(Cluster)
class ClusterAdmin(WakesScheduler):
    """The one row: its list is its page."""

    fields = ("paused", "pause_reason", "image_patterns", "last_pass_at")
    readonly_fields = ("last_pass_at",)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return HttpResponseRedirect(reverse("admin:jobs_cluster_change", args=[Cluster.get().pk]))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnly:
    """Nothing here is changed by hand: jobs change by what happens to them, and leave events."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class RunInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]
    model = Run
    fk_name = "job"
    fields = ("number", "node", "state", "placed_at", "started_at", "ended_at", "end_reason", "exit_code",
              "container_id")  # fmt: skip
    extra = 0


class EventInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]
    model = JobEvent
    fields = ("at", "sentence", "actor")
    readonly_fields = ("sentence",)
    extra = 0

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("actor")

    @admin.display(description=_("what"))
    def sentence(self, event: JobEvent) -> str:
        return wording.event_sentence(event)


@admin.register(Job)
class JobAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("id", "name", "owner", "team", "state", "end_reason", "gpus", "created_at", "ended_at")
    list_filter = ("state", "end_reason", "team")
    list_select_related = ("owner", "team")
    search_fields = ("=id", "name", "image", "owner__username")
    show_full_result_count = False
    exclude = ("secrets_encrypted",)
    readonly_fields = ("page", "secret_names")
    inlines = (RunInline, EventInline)

    @admin.display(description=_("page"))
    def page(self, job: Job) -> SafeString:
        return format_html('<a href="{}">{}</a>', job.get_absolute_url(), job)

    @admin.display(description=_("secrets"))
    def secret_names(self, job: Job) -> str:
        return ", ".join(job.secrets_encrypted) or "–"
