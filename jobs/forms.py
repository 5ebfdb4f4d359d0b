"""The form of a job: what people type, as a `JobRequest`, and whatever is wrong with it at its field."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from django import forms
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from gpus.models import GPU
from jobs import secretbox, units, usage, wording
from jobs.formfields import EnvironmentField, LimitField, QuantityField, Row, ScriptField, WordsField
from jobs.formmore import MoreFields, more_of
from jobs.formstart import first_values
from jobs.models import CommandKind, Job, Mount, Priority, Team
from jobs.policy.explain import NEVER
from jobs.request import JobRequest, Problem
from jobs.submit import Refused, check
from portal.models import User

# Where a problem or refusal of the request stands in the form.
FIELDS = {
    "millicpus": "cpus", "memory_mib": "memory", "shm_mib": "shm", "gpu_memory_mib": "gpu_memory",
    "limit_seconds": "limit", "grace_seconds": "grace", "gpu_milli": "gpu_percent",
}  # fmt: skip
# What a link to the form may fill in: nothing that runs, so that nobody is handed a command unread.
LINKABLE = (
    "name", "gpus", "gpu_model", "gpu_memory", "gpu_percent", "gpu_profile", "least_gpus", "cpus", "memory", "shm",
    "limit", "priority", "grace",
)  # fmt: skip
MAY_BE_ANY = ("gpu_model", "gpu_memory")  # of those, what a link may empty

# What is wrong with numbers that can be read: a preview says so too.
HOPELESS = NEVER | {
    "QUOTA_GPUS", "QUOTA_CPUS", "QUOTA_MEMORY", "LARGEST_JOB", "LONGEST_LIMIT", "HIGHEST_PRIORITY", "BUDGET_SIZE",
}  # fmt: skip

# What an untouched form lacks: told as what is still to do, not as a mistake.
UNFILLED = frozenset({"NAME_EMPTY", "IMAGE_EMPTY", "SCRIPT_EMPTY", "required"})

# What stands in for a field that can't be read, so that the others can be judged: nothing that they could clash with.
WHEN_UNREAD: dict[str, Any] = {
    "name": "-", "image": "-", "command_kind": "", "script": "-", "entrypoint": (), "arguments": (), "gpus": 0,
    "gpu_model": "", "gpu_memory": None, "cpus": 1000, "memory": units.MOST, "shm": None, "limit": 1, "priority": 0,
    "environment": [], "mounts": (), "grace": None, "start_after": None, "gpu_percent": None, "gpu_profile": "",
    "least_gpus": None, "node_labels": (), "stop_signal": "",
}  # fmt: skip
OF_GPUS = ("gpu_model", "gpu_memory", "gpu_percent", "gpu_profile", "least_gpus")  # clash with a number that is unread


class ToDo(NamedTuple):
    """What keeps the form from being submitted whatever is free: labels of empty fields; label and sentence."""

    unfilled: list[str]
    wrong: list[tuple[str, str]]


class JobForm(MoreFields):
    """What one person asks for. `original` is the visible job that it was cloned from.

    After `is_valid()`, `to_request()` gives the request. `refuse()` shows what submission refused.
    """

    submission = forms.UUIDField(widget=forms.HiddenInput, required=False)
    cloned_from = forms.IntegerField(widget=forms.HiddenInput, required=False)
    name = forms.CharField(label=gettext_lazy("Name"), required=False, max_length=1000)
    team = forms.ModelChoiceField(
        Team.objects.none(), label=gettext_lazy("Team"), empty_label=None,
        help_text=gettext_lazy("Its members can read the job's log, script, files and plain variables, never secrets."),
    )  # fmt: skip
    image = forms.CharField(
        label=gettext_lazy("Image"), required=False, max_length=2000,
        help_text=gettext_lazy("registry/path:tag, as for docker run. The host fetches it before the job starts."),
    )  # fmt: skip
    command_kind = forms.ChoiceField(
        label=gettext_lazy("Command"), choices=CommandKind.choices, widget=forms.RadioSelect, required=False
    )
    script = ScriptField(
        label=gettext_lazy("Script"), required=False, strip=False,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy("Run by /bin/sh -c in the job's own folder; your files are in /workspace."),
    )  # fmt: skip
    entrypoint = WordsField(
        label=gettext_lazy("Entry point"),
        help_text=gettext_lazy("Replaces the image's own. Words are split as in a shell; empty: the image's."),
    )
    arguments = WordsField(
        label=gettext_lazy("Arguments"),
        help_text=gettext_lazy("Split into words as in a shell, but no shell runs them; empty: the image's."),
    )
    gpus = forms.IntegerField(label=gettext_lazy("GPUs"), min_value=0, max_value=10_000)
    gpu_model = forms.ChoiceField(label=gettext_lazy("GPU model"), required=False)
    gpu_memory = QuantityField(units.parse_memory_mib, label=gettext_lazy("GPU memory, at least"), required=False)
    cpus = QuantityField(units.parse_millicpus, label=gettext_lazy("CPUs"))
    memory = QuantityField(units.parse_memory_mib, label=gettext_lazy("Memory"))
    shm = QuantityField(
        units.parse_memory_mib, label=gettext_lazy("Shared memory"), required=False,
        help_text=gettext_lazy("Part of the memory, at /dev/shm."),
    )  # fmt: skip
    limit = LimitField(
        label=gettext_lazy("Time limit"),
        help_text=gettext_lazy("30m, 2h, 1d 4h; a lone number is minutes. The job is stopped when it is over."),
    )
    priority = forms.TypedChoiceField(label=gettext_lazy("Priority"), coerce=int)
    start_after = forms.DateTimeField(
        label=gettext_lazy("Start after"), required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
    )  # fmt: skip
    environment = EnvironmentField(label=gettext_lazy("Environment variables"))
    mounts = forms.ModelMultipleChoiceField(
        Mount.objects.none(), label=gettext_lazy("Mounts"), required=False, widget=forms.CheckboxSelectMultiple
    )
    grace = QuantityField(
        units.parse_duration, label=gettext_lazy("Time to finish"), required=False,
        help_text=gettext_lazy("Between SIGTERM and SIGKILL when the job is stopped; a lone number is seconds."),
    )  # fmt: skip

    def __init__(self, *args: Any, user: User, original: Job | None = None, **kwargs: Any) -> None:
        self.user = user
        self.original = original
        kwargs["initial"] = {**first_values(user, original), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)
        self.limits = usage.user_limits([user])[user.pk]
        self.job_request: JobRequest | None = None
        self.unread: frozenset[str] = frozenset()  # fields whose text could not be read
        self.readable: dict[str, Any] = {}  # what the others say, also where it is refused
        self._offer()
        self._dress()

    # --- what is offered ---

    def _offer(self) -> None:
        """Only what this person may choose."""
        teams = Team.objects.filter(memberships__user=self.user)
        self.fields["team"].queryset = teams  # type: ignore[attr-defined]
        mounts = Mount.objects.filter(Q(teams=None) | Q(teams__in=teams)).distinct().prefetch_related("teams")
        self.fields["mounts"].queryset = mounts.none() if self.user.may_run_as_root else mounts  # type: ignore[attr-defined]
        self.offer_more()
        self.fields["gpu_model"].choices = self._models()  # type: ignore[attr-defined]
        ceiling = Priority.URGENT if self.limits.priority is None else self.limits.priority
        self.fields["priority"].choices = [  # type: ignore[attr-defined]
            (value, label) for value, label in Priority.choices if value <= ceiling
        ]

    def _models(self) -> list[tuple[str, Any]]:
        """The models there are, and one asked for that there no longer is."""
        found = GPU.objects.filter(hidden=False).exclude(model="").order_by("model").values_list("model", flat=True)
        asked = str(self.data.get("gpu_model") or self.initial.get("gpu_model") or "")[:128]
        models = dict.fromkeys([*found, *filter(None, [asked])])
        return [("", pgettext_lazy("GPU model", "any")), *((model, model) for model in models)]

    def _dress(self) -> None:
        """Bootstrap's classes."""
        for field in self.fields.values():
            kinds = {"select": "form-select", "radio": "form-check-input", "checkbox": "form-check-input"}
            kind = getattr(field.widget, "input_type", "text")
            field.widget.attrs.setdefault("class", kinds.get(kind, "form-control"))
        for name in ("script", "entrypoint", "arguments", "image"):
            self.fields[name].widget.attrs["class"] += " mono"
        for name in ("image", "entrypoint", "arguments", "name"):
            self.fields[name].widget.attrs.update(autocomplete="off", spellcheck="false", autocapitalize="off")
        self.fields["image"].widget.attrs["list"] = "image-hints"
        self.fields["gpu_memory"].widget.attrs["placeholder"] = _("any")
        self.fields["shm"].widget.attrs["placeholder"] = _("half of the memory")

    # --- what was typed ---

    def clean(self) -> dict[str, Any]:
        """Everything that is wrong, at once: also of the other fields when one can't be read."""
        cleaned = super().clean() or {}
        self.unread, self.readable = frozenset(self.errors), dict(cleaned)
        values = [self._value(row) for row in cleaned["environment"]]
        unread = OF_GPUS if "gpus" in self.unread else ()
        readable = {name: value for name, value in cleaned.items() if name not in unread}
        request = self._request({**WHEN_UNREAD, **readable}, [value or "" for value in values])
        self._problems(self._missing_secrets(cleaned["environment"], values))
        self._admission(request, cleaned.get("team"))
        self.job_request = None if self.unread else request
        return cleaned

    def _admission(self, request: JobRequest, team: Team | None) -> None:
        """What `submit` would refuse whatever is running now."""
        names = {name: field for field, name in FIELDS.items()}
        unread = {names.get(name, name) for name in self.unread}
        try:
            check(request, owner=self.user, team=team, unread=unread)
        except Refused as refused:
            self.refuse(refused)

    def _value(self, row: Row) -> str | None:
        return row.value or (self._kept(row) if row.secret else "")

    def _missing_secrets(self, rows: list[Row], values: list[str | None]) -> Iterator[Problem]:
        """Secrets without a value; those that were there in the job that is cloned are to be entered again."""
        copied = self.original.secrets_encrypted if self.original else ()
        for number, (row, value) in enumerate(zip(rows, values, strict=True), 1):
            if value is None:
                where = {"row": number, "name": row.name, "again": bool(row.kept) or row.name in copied}
                yield Problem(field="environment", code="SECRET_MISSING", params=where)

    def _kept(self, row: Row) -> str | None:
        """The secret of this name in the job it is kept from, which must be this person's own; None: there is none."""
        kept = Job.objects.filter(pk=row.kept, owner=self.user).first() if row.kept else None
        token = kept.secrets_encrypted.get(row.name) if kept else None
        try:
            return None if token is None else secretbox.open_(token)
        except secretbox.Unreadable:
            return None

    def _request(self, cleaned: dict[str, Any], values: list[str]) -> JobRequest:
        kind = cleaned["command_kind"] or CommandKind.SCRIPT.value
        script = kind == CommandKind.SCRIPT
        memory, rows = cleaned["memory"] or 0, cleaned["environment"]
        return JobRequest(
            name=cleaned["name"], image=cleaned["image"], command_kind=kind,
            script=cleaned["script"] if script else "",
            entrypoint=() if script else cleaned["entrypoint"], arguments=() if script else cleaned["arguments"],
            gpus=cleaned["gpus"], gpu_model=cleaned["gpu_model"], gpu_memory_mib=cleaned["gpu_memory"] or 0,
            millicpus=cleaned["cpus"] or 0, memory_mib=memory,
            shm_mib=max(memory // 2, 1) if cleaned["shm"] is None else cleaned["shm"],
            limit_seconds=cleaned["limit"], grace_seconds=30 if cleaned["grace"] is None else cleaned["grace"],
            priority=cleaned["priority"], **more_of(cleaned),
            environment=tuple((row.name, value) for row, value in zip(rows, values, strict=True)),
            secret_names=frozenset(row.name for row in rows if row.secret),
            mounts=tuple(mount.pk for mount in cleaned["mounts"]), start_after=cleaned["start_after"],
            cloned_from=self.original.pk if self.original else None,
        )  # fmt: skip

    def to_request(self) -> JobRequest:
        """The request. Only after `is_valid()`."""
        assert self.job_request is not None
        return self.job_request

    def to_preview(self) -> tuple[JobRequest, Team] | None:
        """What can be said before name, image and command are there; None while the numbers are wrong."""
        self.is_valid()
        needed = {"team", "gpus", "gpu_model", "gpu_memory", "cpus", "memory", "limit", "priority", "start_after"}
        cleaned = self.readable
        wrong = {name for name, found in self.errors.as_data().items() if not all(e.code in HOPELESS for e in found)}
        if (needed | {*OF_GPUS, "node_labels"}) & wrong or not needed <= set(cleaned):
            return None
        asked = {name: value for name, value in cleaned.items() if cleaned["gpus"] or name not in OF_GPUS}
        request = JobRequest(
            name="-", image=cleaned.get("image") or "-", script="-", gpus=cleaned["gpus"],
            gpu_model=asked.get("gpu_model") or "", gpu_memory_mib=asked.get("gpu_memory") or 0,
            millicpus=cleaned["cpus"], memory_mib=cleaned["memory"], shm_mib=1, limit_seconds=cleaned["limit"],
            priority=cleaned["priority"], start_after=cleaned["start_after"], **more_of(asked),
        )  # fmt: skip
        return request, cleaned["team"]

    # --- what is wrong ---

    def to_do(self) -> ToDo:
        """What is missing or wrong, but for what a preview says itself: that hosts or quotas never allow it."""
        found = ToDo([], [])
        for name, errors in self.errors.as_data().items():
            label = str(self.fields[name].label) if name in self.fields else ""
            codes = {error.code for error in errors}
            if codes <= UNFILLED:
                found.unfilled.append(label)
            elif not codes <= HOPELESS:
                found.wrong.extend((label, " ".join(map(str, e))) for e in errors if e.code not in HOPELESS)
        return found

    def refuse(self, refused: Refused) -> None:
        """Show what submission refused, each at its field, and have every secret typed again."""
        self._problems(refused.problems)
        for field, code, sentence in wording.refusals(refused.refusals, reader=self.user.get_username()):
            self._say(field, sentence, code)

    def _problems(self, problems: Any) -> None:
        for problem in problems:
            self._say(problem.field, wording.problem(problem), problem.code)

    def _say(self, field: str, sentence: str, code: str) -> None:
        name = FIELDS.get(field, field)
        at = name if name in self.fields and not self.fields[name].widget.is_hidden else None
        if at not in self.unread:
            self.add_error(at, forms.ValidationError(sentence, code=code))
