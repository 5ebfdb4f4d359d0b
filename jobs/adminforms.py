"""Forms of the admin pages: quantities as people write them, registries as image names have them, no secret shown."""

import re
from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from gpus.models import Node
from jobs import egress, secretbox, units
from jobs.formfields import QuantityField
from jobs.models import Cluster, Quota, RegistryLogin

_REGISTRY = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d{1,5})?", re.ASCII)
_DOCKER_HUB = frozenset({"index.docker.io", "registry-1.docker.io", "hub.docker.com", "registry.hub.docker.com"})


def cpus_field(label: Any, **options: Any) -> QuantityField:
    """CPUs as "4" or "1.5", kept in thousandths."""
    return QuantityField(
        units.parse_millicpus, show=units.format_cpus, label=label, help_text=_("4, 1.5 or 0.5."), **options
    )


def memory_field(label: Any, **options: Any) -> QuantityField:
    """Memory as "16 GiB"; a lone number is GiB. Kept in MiB."""
    text = _("16 GiB or 512 MiB; a lone number is GiB.")
    return QuantityField(units.parse_memory_mib, show=units.exact_memory, label=label, help_text=text, **options)


class ByModelField(forms.CharField):
    """A number by GPU model, a line each: "NVIDIA A100: 4". Cleans to a dict."""

    widget = forms.Textarea
    pattern = re.compile(r"\d{1,6}", re.ASCII)
    number: Callable[[str], float] = int
    example = "NVIDIA A100-SXM4-40GB: 4"

    def prepare_value(self, value: Any) -> Any:
        """A line a model, by name: databases keep no order of keys."""
        if not isinstance(value, dict):
            return value
        return "\n".join(f"{model}: {number:g}" for model, number in sorted(value.items()))

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(self.prepare_value(initial), data)

    def clean(self, value: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for line in filter(None, (line.strip() for line in super().clean(value).splitlines())):
            model, _colon, number = (part.strip() for part in line.rpartition(":"))
            if not model or not self.pattern.fullmatch(number):
                text = gettext("Write each line as a model and a number, such as %(example)s.")
                raise ValidationError(text % {"example": self.example}, code="MODEL")
            found[model] = type(self).number(number)
        return found


class WeightsField(ByModelField):
    """What a GPU of each model counts."""

    pattern = re.compile(r"\d{1,4}(\.\d{1,6})?", re.ASCII)
    number = float
    example = "NVIDIA L4: 0.5"


class ClusterForm(forms.ModelForm):  # type: ignore[type-arg]
    """The cluster-wide switches and rules."""

    gpu_weights = WeightsField(
        label=_("Weight of a GPU by model"), required=False, max_length=5000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 40}),
        help_text=_("What an hour of it counts in fair share, one model a line: NVIDIA L4: 0.5. Others count 1."),
    )  # fmt: skip

    class Meta:
        model = Cluster
        fields = ("gpu_weights",)

    def clean_egress_networks(self) -> str:
        text: str = self.cleaned_data["egress_networks"]
        try:
            egress.networks(text)
        except egress.BadNetworks as error:
            said = gettext("“%(word)s” is no IPv4 network.") % {"word": error}
            raise ValidationError(said, code="EGRESS") from error
        return text


class QuotaSizesForm(forms.ModelForm):  # type: ignore[type-arg]
    """The limits of a quota. An empty field sets none."""

    millicpus = cpus_field(_("CPUs at once"), required=False)
    memory_mib = memory_field(_("Memory at once"), required=False)
    limit_seconds = QuantityField(
        units.parse_limit, show=units.exact_duration, label=_("Longest time limit"), required=False,
        help_text=_("30m, 2h, 1d 4h; a lone number is minutes."),
    )  # fmt: skip

    gpus_by_model = ByModelField(
        label=_("GPUs at once by model"), required=False, max_length=5000,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 40}),
        help_text=_("One model a line: NVIDIA A100-SXM4-40GB: 4. Other models are limited by the sum alone."),
    )  # fmt: skip

    class Meta:
        model = Quota
        fields = ("gpus", "gpus_by_model", "guaranteed_gpus", "millicpus", "memory_mib", "running_jobs", "queued_jobs",
                  "interactive_jobs", "gpu_hours", "gpu_hours_soft", "window_days", "job_gpus", "limit_seconds",
                  "priority")  # fmt: skip
        help_texts = {"guaranteed_gpus": _(
            "What the team holds beyond this is borrowed, and given back when others need what they are guaranteed. "
            "Empty: all it holds is borrowed."
        )}  # fmt: skip

    def clean(self) -> dict[str, Any]:
        """Values that contradict each other are said at once: they would only ever be noticed by who waits."""
        found: dict[str, Any] = super().clean() or self.cleaned_data
        soft, hard = found.get("gpu_hours_soft"), found.get("gpu_hours")
        if soft is not None and hard is not None and soft > hard:
            self.add_error("gpu_hours_soft", gettext("The soft mark is above the limit of %(most)d.") % {"most": hard})
        promised, most = found.get("guaranteed_gpus"), found.get("gpus")
        if promised is not None and most is not None and promised > most:
            text = gettext("More are guaranteed than may be used at once: %(most)d.") % {"most": most}
            self.add_error("guaranteed_gpus", text)
        if found.get("window_days") == 0:
            self.add_error("window_days", gettext("At least one day."))
        return found


class QuotaForm(QuotaSizesForm):
    """Of a user, of a team, or of every user who has none of their own."""

    class Meta(QuotaSizesForm.Meta):
        fields = ("user", "team", *QuotaSizesForm.Meta.fields)  # type: ignore[assignment]
        help_texts = {
            **QuotaSizesForm.Meta.help_texts,
            "user": _("With neither user nor team: for every user who has no quota of their own."),
        }

    def clean(self) -> dict[str, Any]:
        found = super().clean()
        if found.get("guaranteed_gpus") is not None and not found.get("team"):
            self.add_error("guaranteed_gpus", gettext("GPUs are guaranteed to teams, not to people."))
        return found


class NodeForm(forms.ModelForm):  # type: ignore[type-arg]
    """What an admin wishes of a host."""

    reserved_millicpus = cpus_field(_("CPUs kept for the host"))
    reserved_memory_mib = memory_field(_("Memory kept for the host"))

    class Meta:
        model = Node
        fields = ("reserved_millicpus", "reserved_memory_mib", "labels", "cordoned", "cordon_reason")

    def clean_labels(self) -> dict[str, str]:
        """Texts by name; empty for none. The scheduler reads nothing else."""
        labels = self.cleaned_data["labels"] or {}
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise forms.ValidationError(gettext('Write labels as {"key": "value"}.'), code="LABELS")
        return labels


def registry_name(typed: str) -> str | None:
    """The registry as image names have it, from a name or an address of it; None when it is neither."""
    name = re.sub(r"^[a-z][a-z0-9+.-]*://", "", typed.strip().lower()).partition("/")[0].rpartition("@")[2]
    if name in _DOCKER_HUB:
        return "docker.io"
    known = _REGISTRY.fullmatch(name) and ("." in name or ":" in name or name == "localhost")
    return name if known else None


class RegistryLoginForm(forms.ModelForm):  # type: ignore[type-arg]
    """The password goes in and never comes out: an empty box keeps the one there is."""

    password = forms.CharField(
        label=_("Password"), required=False, widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        strip=False, help_text=_("Encrypted, never shown again. Empty: as it was."),
    )  # fmt: skip

    class Meta:
        model = RegistryLogin
        fields = ("registry", "username", "password")

    def clean_registry(self) -> str:
        name = registry_name(self.cleaned_data["registry"])
        if name is None:
            text = gettext("Write the registry as images name it, such as registry.example.org:5000 or docker.io.")
            raise ValidationError(text, code="REGISTRY")
        return name

    def clean_password(self) -> str:
        password: str = self.cleaned_data["password"]
        if not password and not self.instance.password_encrypted:
            raise ValidationError(_("A new log-in needs its password."))
        return password

    def save(self, commit: bool = True) -> Any:
        if self.cleaned_data["password"]:
            self.instance.password_encrypted = secretbox.seal(self.cleaned_data["password"])
        return super().save(commit)
