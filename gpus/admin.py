"""Nodes and GPUs for admins: what hosts report can be read, what admins wish can be set, nothing can be made up."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from gpus import cordon
from gpus.models import GPU, Node

MOST_SLOTS = 100


class ReasonForm(ActionForm):
    """The bar of actions, with a reason to write down."""

    reason = forms.CharField(label=_("Reason"), required=False, max_length=200)


class ReportedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that hosts report: never added by hand, editable only in `wishes`."""

    wishes: tuple[str, ...] = ()

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [f.name for f in self.model._meta.fields if f.name not in (*self.wishes, "id")]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changed(self, request: HttpRequest, rows: QuerySet[Any], **values: Any) -> None:
        """Set the values row by row, so that each change is in the audit log, and say how many there were."""
        for row in rows:
            for name, value in values.items():
                setattr(row, name, value)
            row.save(update_fields=list(values))
        self.say_changed(request, len(rows))

    def say_changed(self, request: HttpRequest, count: int) -> None:
        self.message_user(request, ngettext("%d row changed.", "%d rows changed.", count) % count, messages.SUCCESS)


@admin.register(Node)
class NodeAdmin(ReportedAdmin):
    wishes = ("reserved_millicpus", "reserved_memory_mib", "labels", "cordoned", "cordon_reason")
    list_display = ("name", "alive", "gpu_status", "gpu_count", "cordoned", "cordon_reason", "engine_version",
                    "last_seen")  # fmt: skip
    list_filter = ("cordoned", "gpu_status")
    search_fields = ("name", "hostname")
    actions: tuple[str, ...] = ("cordon", "uncordon")
    action_form = ReasonForm
    fieldsets = (
        (None, {"fields": (
            "name", "cordoned", "cordon_reason", "reserved_millicpus", "reserved_memory_mib", "labels")}),
        (_("As the host reports it"), {"fields": (
            "hostname", "millicpus", "memory_mib", "gpu_status", "gpu_message", "driver_version", "engine_id",
            "engine_version", "engine_error", "agent_version", "first_seen", "last_seen")}),
    )  # fmt: skip

    @admin.display(description=_("heard of lately"), boolean=True)
    def alive(self, node: Node) -> bool:
        return node.is_alive()

    @admin.display(description=_("GPUs"))
    def gpu_count(self, node: Node) -> int:
        return len(node.gpus.all())

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        return super().get_queryset(request).prefetch_related("gpus")

    @admin.action(description=_("Cordon: no new jobs (running ones go on)"), permissions=["change"])
    def cordon(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        reason = request.POST.get("reason", "")
        self.say_changed(request, sum(cordon.cordon(node, request.user, reason) for node in nodes))

    @admin.action(description=_("Uncordon"), permissions=["change"])
    def uncordon(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self.say_changed(request, sum(cordon.uncordon(node, request.user) for node in nodes))

    def save_model(self, request: HttpRequest, obj: Node, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if {"cordoned", "cordon_reason"} & set(form.changed_data):
            cordon.note(obj, request.user)


class GPUForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean_slots(self) -> int:
        """Slots change only while nobody holds one: who had the whole GPU would have to share it. Placing waits."""
        slots: int = self.cleaned_data["slots"]
        if slots == GPU.objects.values_list("slots", flat=True).get(pk=self.instance.pk):
            return slots
        if not 1 <= slots <= MOST_SLOTS:
            raise forms.ValidationError(gettext("From 1 to %(most)d.") % {"most": MOST_SLOTS}, code="SLOTS")
        Node.objects.select_for_update(no_key=True).get(pk=self.instance.node_id)
        if self.instance.allocation_slots.filter(released_at=None).exists():
            text = gettext("A job is on it: the number of slots can change once the GPU is free.")
            raise forms.ValidationError(text, code="SLOTS_HELD")
        return slots


@admin.register(GPU)
class GPUAdmin(ReportedAdmin):
    form = GPUForm
    wishes = ("hidden", "quarantine_reason", "slots")
    list_display = ("short_uuid", "node", "index", "model", "profile", "memory_mib", "slots", "health", "hidden",
                    "quarantine_reason")  # fmt: skip
    list_filter = ("node", "model", "health", "hidden")
    list_select_related = ("node",)
    search_fields = ("uuid", "model", "node__name")
    actions = ("hide", "show", "lift_quarantine")
    fieldsets = (
        (None, {"fields": ("uuid", "slots", "hidden", "quarantine_reason")}),
        (_("As the host reports it"), {"fields": (
            "node", "index", "pci_bus_id", "model", "profile", "memory_mib", "numa", "island",
            "health", "health_message", "sampled_at",
            "outsiders", "busy_outside_since", "clean_samples")}),
    )  # fmt: skip

    @admin.action(description=_("Hide: offer it to no job"), permissions=["change"])
    def hide(self, request: HttpRequest, gpus: QuerySet[GPU]) -> None:
        self.changed(request, gpus, hidden=True)

    @admin.action(description=_("Show: offer it to jobs"), permissions=["change"])
    def show(self, request: HttpRequest, gpus: QuerySet[GPU]) -> None:
        self.changed(request, gpus, hidden=False)

    @admin.action(description=_("Lift the quarantine"), permissions=["change"])
    def lift_quarantine(self, request: HttpRequest, gpus: QuerySet[GPU]) -> None:
        self.changed(request, gpus, quarantine_reason="")
