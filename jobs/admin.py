"""Teams, limits, mounts, registries and the cluster's switches for admins; jobs to read. No secret is ever shown."""

import os
from collections.abc import Callable
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from gpus.admin import NodeAdmin
from gpus.models import Node
from jobs import control, mounts, reorder, search, wording
from jobs.adminforms import ClusterForm, NodeForm, QuotaForm, QuotaSizesForm, RegistryLoginForm
from jobs.models import Cluster, Job, JobEvent, Membership, Mount, Priority, Quota, RegistryLogin, Run, Team
from jobs.queues import wake_scheduler
from jobs.states import EndReason, JobState
from jobs.vacate import leaving, vacate


class WakesScheduler(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows whose change may let jobs start: the scheduler looks at once."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        transaction.on_commit(wake_scheduler, robust=True)


admin.site.unregister(Node)


@admin.register(Node)
class SizedNodeAdmin(NodeAdmin):
    """Hosts, with sizes as the portal writes them: words for them are the jobs' own."""

    form = NodeForm
    actions = (*NodeAdmin.actions, "move_away")
    readonly_fields = ("cpus", "memory")
    fieldsets = (
        NodeAdmin.fieldsets[0],
        (_("As the host reports it"), {"fields": (
            "hostname", "cpus", "memory", "gpu_status", "gpu_message", "driver_version", "engine_id",
            "engine_version", "engine_error", "agent_version", "first_seen", "last_seen")}),
    )  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*super().get_readonly_fields(request, obj), *self.readonly_fields]

    @admin.action(description=_("Cordon, and move its jobs away…"), permissions=["change"])
    def move_away(self, request: HttpRequest, nodes: QuerySet[Node]) -> HttpResponse | None:
        """First a page that says what would become of each job, then the deed."""
        if not request.POST.get("confirmed"):
            return self._ask_first(request, nodes)
        self.cordon(request, nodes)
        chosen = {name: bool(request.POST.get(name)) for name in ("regardless", "protected")}
        moved, left = vacate(nodes.all(), request.user, **chosen)
        text = ngettext("%d job is being moved away.", "%d jobs are being moved away.", len(moved))
        self.message_user(request, text % len(moved), messages.SUCCESS)
        if left:
            text = ngettext("%(count)d job runs to its end where it is: %(jobs)s.",
                            "%(count)d jobs run to their end where they are: %(jobs)s.", len(left))  # fmt: skip
            jobs = ", ".join(f"#{one.run.job_id} ({one.run.node.name})" for one in left)
            self.message_user(request, text % {"count": len(left), "jobs": jobs}, messages.WARNING)
        return None

    def _ask_first(self, request: HttpRequest, nodes: QuerySet[Node]) -> HttpResponse:
        found = leaving(nodes, timezone.now())
        context = {
            **self.admin_site.each_context(request), "title": gettext("Cordon, and move its jobs away"),
            "opts": self.model._meta, "nodes": nodes, "leaving": found, "reason": request.POST.get("reason", "")[:200],
            "without": [one for one in found if not one.to], "protected": [one for one in found if one.is_protected],
        }  # fmt: skip
        return TemplateResponse(request, "admin/gpus/node/move_away.html", context)

    @admin.display(description=_("CPUs"))
    def cpus(self, node: Node) -> str:
        return wording.cpus(node.millicpus)

    @admin.display(description=_("memory"))
    def memory(self, node: Node) -> str:
        return wording.memory(node.memory_mib)


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Membership
    extra = 1
    autocomplete_fields = ("user",)


class QuotaInline(admin.StackedInline):  # type: ignore[type-arg]
    model = Quota
    form = QuotaSizesForm
    extra = 0
    max_num = 1
    exclude = ("user",)


@admin.register(Team)
class TeamAdmin(WakesScheduler):
    list_display = ("name", "shares", "guaranteed", "placement", "people")
    search_fields = ("name",)
    inlines = (MembershipInline, QuotaInline)

    @admin.display(description=_("guaranteed GPUs"))
    def guaranteed(self, team: Team) -> str:
        quota = getattr(team, "quota", None)
        return "–" if quota is None or quota.guaranteed_gpus is None else str(quota.guaranteed_gpus)

    @admin.display(description=_("members"))
    def people(self, team: Team) -> str:
        return ", ".join(sorted(member.username for member in team.members.all()))

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("members").select_related("quota")

    def has_delete_permission(self, request: HttpRequest, obj: Team | None = None) -> bool:
        """A team with jobs stays: history names it."""
        return super().has_delete_permission(request, obj) and (obj is None or not obj.jobs.exists())


@admin.register(Quota)
class QuotaAdmin(WakesScheduler):
    form = QuotaForm
    list_display = ("__str__", "gpus", "guaranteed_gpus", "cpus", "memory", "running_jobs", "interactive_jobs",
                    "queued_jobs", "gpu_hours", "job_gpus", "longest", "priority")  # fmt: skip
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
    if not mounts.is_plain(source):
        return gettext("Give an absolute path without a colon.")
    real = os.path.realpath(source)
    if os.path.basename(real) in ("docker.sock", "containerd.sock", "podman.sock") or os.path.isfile(real):
        return gettext("Only directories can be mounted, and never the socket of an engine.")
    if not mounts.is_inside_roots(real):
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


@admin.register(RegistryLogin)
class RegistryLoginAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = RegistryLoginForm
    list_display = ("registry", "username")


@admin.register(Cluster)
class ClusterAdmin(WakesScheduler):
    """The one row: its list is its page."""

    form = ClusterForm
    fieldsets = (
        (None, {"fields": ("paused", "pause_reason", "image_patterns", "last_pass_at")}),
        (_("Network of jobs"), {"fields": ("egress", "egress_networks")}),
        (_("Order of the queue"), {"fields": ("half_life_days", "lift_after_hours")}),
        (_("What counts in fair share"), {"fields": ("gpu_weights", "cpu_weight", "memory_weight")}),
        (_("Stopping and moving jobs for others"), {"fields": (
            "preempt_lower", "protected_minutes", "defragment", "extension_hours")}),
    )  # fmt: skip
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


class InWords:
    """States and reasons as the pages say them."""

    @admin.display(description=_("state"), ordering="state")
    def state_words(self, row: Job | Run) -> str:
        return wording.state_label(row.state)

    @admin.display(description=_("reason"), ordering="end_reason")
    def end_words(self, row: Job | Run) -> str:
        said = wording.run_label(row) if isinstance(row, Run) else row.end_reason and wording.end_label(row.end_reason)
        return said or "–"


class WordsFilter(admin.SimpleListFilter):
    """A column of codes to choose from by their words."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else queryset


class StateFilter(WordsFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.value, wording.state_label(state)) for state in JobState]


class EndFilter(WordsFilter):
    title = _("reason")
    parameter_name = "end_reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason.value, wording.end_label(reason)) for reason in EndReason]


class RunInline(InWords, ReadOnly, admin.TabularInline):  # type: ignore[type-arg]
    model = Run
    fk_name = "job"
    fields = ("number", "node", "state_words", "placed_at", "started_at", "ended_at", "end_words", "exit_code",
              "container_id")  # fmt: skip
    readonly_fields = ("state_words", "end_words")
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


class Foremost(Paginator):  # type: ignore[type-arg]
    """The pages of the first MOST rows: to count all of a table reads all of it, at each page."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: self.MOST].count())


@admin.register(Job)
class JobAdmin(InWords, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("id", "name", "owner", "team", "state_words", "end_words", "gpus", "priority", "pinned",
                    "created_at", "ended_at")  # fmt: skip
    list_filter = (StateFilter, EndFilter, "team", "pinned")
    actions = ("pin", "unpin", "hold", "release", "make_urgent", "make_high", "make_normal", "make_low")
    list_select_related = ("owner", "team")
    search_fields = ("=id", "name", "image", "owner__username")
    list_per_page = 50
    show_full_result_count = False
    paginator = Foremost
    search_help_text = format_lazy(_("No more than {count} jobs are listed: narrow them down."), count=Foremost.MOST)
    exclude = ("secrets_encrypted", "state", "end_reason", "wait_reasons")
    readonly_fields = ("page", "state_words", "end_words", "why", "secret_names")
    inlines = (RunInline, EventInline)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """As the job list does, by the index: Django's own way reads all jobs."""
        term = search_term.replace("\0", "").strip()
        return (search.wanted(term).among(queryset) if term else queryset), False

    @admin.action(description=_("Pin: before all others"), permissions=["view"])
    def pin(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._each(request, jobs, reorder.pin)

    @admin.action(description=_("Unpin"), permissions=["view"])
    def unpin(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._each(request, jobs, reorder.unpin)

    @admin.action(description=_("Hold"), permissions=["view"])
    def hold(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._each(request, jobs, control.hold)

    @admin.action(description=_("Release"), permissions=["view"])
    def release(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._each(request, jobs, control.release)

    @admin.action(description=_("Priority: urgent"), permissions=["view"])
    def make_urgent(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._reprioritise(request, jobs, Priority.URGENT)

    @admin.action(description=_("Priority: high"), permissions=["view"])
    def make_high(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._reprioritise(request, jobs, Priority.HIGH)

    @admin.action(description=_("Priority: normal"), permissions=["view"])
    def make_normal(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._reprioritise(request, jobs, Priority.NORMAL)

    @admin.action(description=_("Priority: low"), permissions=["view"])
    def make_low(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._reprioritise(request, jobs, Priority.LOW)

    def _reprioritise(self, request: HttpRequest, jobs: QuerySet[Job], priority: Priority) -> None:
        self._each(request, jobs, lambda job, actor: reorder.reprioritise(job, actor, priority))

    def _each(self, request: HttpRequest, jobs: QuerySet[Job], verb: Callable[[Job, Any], bool]) -> None:
        """One verb for each of the jobs; says for how many it changed something."""
        shown = jobs.select_related("owner", "team")[: Foremost.MOST]  # as many as the page says, where it has all
        changed = sum(verb(job, request.user) for job in shown)
        text = ngettext("%(count)d waiting job changed.", "%(count)d waiting jobs changed.", changed)
        self.message_user(request, text % {"count": changed}, messages.SUCCESS if changed else messages.WARNING)

    @admin.display(description=_("page"))
    def page(self, job: Job) -> SafeString:
        return format_html('<a href="{}">{}</a>', job.get_absolute_url(), job)

    @admin.display(description=_("why"))
    def why(self, job: Job) -> str:
        return wording.headline(job)

    @admin.display(description=_("secrets"))
    def secret_names(self, job: Job) -> str:
        return ", ".join(job.secrets_encrypted) or "–"
