"""The fields of a job's form that few jobs need: parts of GPUs, labels, elastic sizes, and what others may do to it."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy, pgettext_lazy

from gpus.models import GPU, Node
from jobs.containerspec import SIGNALS
from jobs.quotas import WHOLE

NAMES = (
    "gpu_percent", "gpu_profile", "least_gpus", "node_labels", "preemptible", "movable", "interactive", "offline",
    "stop_signal",
)  # fmt: skip


class MoreFields(forms.Form):
    """To be inherited from. `offer_more` leaves out what no host offers, unless the job asks for it already."""

    gpu_percent = forms.FloatField(
        label=gettext_lazy("Share of the GPU, in percent"), required=False,
        help_text=gettext_lazy(
            "Others use the rest of the GPU. Its memory is not kept apart, so take no more of it than your share."
        ),
    )  # fmt: skip
    gpu_profile = forms.ChoiceField(
        label=gettext_lazy("MIG profile"),
        required=False,
        help_text=gettext_lazy("A part of a GPU with its own memory, kept apart by the hardware; one a job."),
    )
    least_gpus = forms.IntegerField(
        label=gettext_lazy("GPUs, at least"), required=False, min_value=1, max_value=10_000,
        help_text=gettext_lazy(
            "Makes it elastic: it starts with as few as this, or more up to the number of GPUs; DOCKYARD_GPUS tells."
        ),
    )  # fmt: skip
    node_labels = forms.MultipleChoiceField(
        label=gettext_lazy("Only on hosts with"), required=False, widget=forms.CheckboxSelectMultiple
    )
    preemptible = forms.BooleanField(
        label=gettext_lazy("May be stopped for jobs of higher priority"),
        required=False,
        help_text=gettext_lazy(
            "It then waits at its old place, and starts again from its beginning with the same files."
        ),
    )
    movable = forms.BooleanField(
        label=gettext_lazy("May be moved to other GPUs"),
        required=False,
        help_text=gettext_lazy(
            "To make room for a large job: it is stopped and started again at once, with the same files."
        ),
    )
    offline = forms.BooleanField(
        label=gettext_lazy("Without network"), required=False,
        help_text=gettext_lazy("It reaches nothing and looks up no name; its image is fetched all the same."),
    )  # fmt: skip
    interactive = forms.BooleanField(
        label=gettext_lazy("Somebody works in it"),
        required=False,
        help_text=gettext_lazy(
            "An interactive job, such as a notebook; how many of them run at once is limited apart."
        ),
    )
    stop_signal = forms.ChoiceField(
        label=gettext_lazy("Signal to stop"),
        required=False,
        choices=[(name, name) for name in SIGNALS],
        help_text=gettext_lazy("What its processes get first when it is stopped, moved or out of time."),
    )

    def others(self) -> list[forms.BoundField]:
        """What others may do to the job, who sits before it, and whether it reaches anything."""
        return [self[name] for name in ("preemptible", "movable", "interactive", "offline")]

    def has_more(self) -> bool:
        """Whether anything below the fold is filled in or wrong."""
        shown = [name for name in (*NAMES, "mounts", "grace") if name in self.fields]
        usual = {"stop_signal": "SIGTERM"}
        filled = (self[name].value() not in (None, "", [], False, usual.get(name)) for name in shown if name != "grace")
        return any(name in self.errors for name in shown) or any(filled)

    def offer_more(self) -> None:
        """Only what the hosts have."""
        if not GPU.objects.filter(hidden=False, slots__gt=1).exists() and not self._asks("gpu_percent"):
            del self.fields["gpu_percent"]
        self._offer_profiles()
        self._offer_labels()

    def _offer_profiles(self) -> None:
        found = GPU.objects.filter(hidden=False).exclude(profile="").order_by("profile")
        profiles = dict.fromkeys([*found.values_list("profile", flat=True).distinct(), *self._asks("gpu_profile")])
        if not profiles:
            del self.fields["gpu_profile"]
            return
        whole = ("", pgettext_lazy("MIG profile", "none: whole GPUs"))
        self.fields["gpu_profile"].choices = [whole, *((name, name) for name in profiles)]  # type: ignore[attr-defined]

    def _offer_labels(self) -> None:
        there = {
            f"{key}={value}"
            for labels in Node.objects.values_list("labels", flat=True)
            for key, value in labels.items()
        }
        labels = sorted(there | set(self._asks("node_labels")))
        if not labels:
            del self.fields["node_labels"]
            return
        self.fields["node_labels"].choices = [(label, label) for label in labels]  # type: ignore[attr-defined]

    def _asks(self, name: str) -> list[Any]:
        """What the posted form, or the cloned job, has in the field."""
        posted = self.data.getlist(name) if hasattr(self.data, "getlist") else self.data.get(name)
        both = (posted, self.initial.get(name))
        return [value for found in both for value in (found if isinstance(found, list) else [found]) if value]


def more_of(cleaned: dict[str, Any]) -> dict[str, Any]:
    """The fields as a `JobRequest` names them."""
    percent = cleaned.get("gpu_percent")
    return {
        "node_labels": tuple(cleaned.get("node_labels") or ()), "stop_signal": cleaned.get("stop_signal") or "SIGTERM",
        **{name: bool(cleaned.get(name)) for name in ("preemptible", "movable", "interactive", "offline")},
        "gpu_milli": WHOLE if percent is None else round(percent * 10),
        "gpu_profile": cleaned.get("gpu_profile") or "", "least_gpus": cleaned.get("least_gpus"),
    }  # fmt: skip
