"""The form of a what-if: everything as it is now, and what would be otherwise."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from gpus.models import Node
from jobs.models import Cluster, Priority, Quota, Team
from jobs.policy.changes import Changes
from jobs.whatif import MOST_DAYS
from portal.models import User

MOST = 10_000
NO_LIMIT = gettext_lazy("Empty: no limit.")
EVERYBODY = ("gpus", "running_jobs", "job_gpus")
OF_TEAM = ("gpus", "guaranteed_gpus")
CLASSES = {"low": Priority.LOW, "normal": Priority.NORMAL, "high": Priority.HIGH, "urgent": Priority.URGENT}


def _count(label: Any, **options: Any) -> forms.IntegerField:
    return forms.IntegerField(label=label, required=False, min_value=0, max_value=MOST, **options)


def _class(label: Any) -> forms.TypedChoiceField:
    choices = [("", gettext_lazy("as it is")), *Priority.choices]
    return forms.TypedChoiceField(label=label, required=False, choices=choices, coerce=int, empty_value=None)


class WhatIfForm(forms.Form):
    """Fields of its own, and some for each host and each team; `changes()` is what is otherwise."""

    days = forms.IntegerField(label=gettext_lazy("Days of history"), min_value=1, max_value=MOST_DAYS, initial=7)
    more_hosts = _count(gettext_lazy("More hosts like the largest"), initial=0)
    everybody_gpus = _count(gettext_lazy("GPUs at once of each user"), help_text=NO_LIMIT)
    everybody_running_jobs = _count(gettext_lazy("Running jobs of each user"), help_text=NO_LIMIT)
    everybody_job_gpus = _count(gettext_lazy("GPUs of the largest job"), help_text=NO_LIMIT)
    user_classes = forms.CharField(
        label=gettext_lazy("Priorities of users"), required=False, max_length=1000,
        help_text=gettext_lazy("All jobs of theirs, such as: alice=high bob=low"),
    )  # fmt: skip
    half_life_days = forms.IntegerField(label=gettext_lazy("Half-life of usage (days)"), min_value=1, max_value=365)
    lift_after_hours = forms.IntegerField(
        label=gettext_lazy("Lift a class after (hours)"), required=False, min_value=1, max_value=MOST,
        help_text=gettext_lazy("Empty: never."),
    )  # fmt: skip
    protected_minutes = forms.IntegerField(
        label=gettext_lazy("Protected run time (minutes)"), min_value=0, max_value=MOST
    )
    preempt_lower = forms.BooleanField(label=gettext_lazy("Higher priority may stop preemptible jobs"), required=False)

    def __init__(self, data: Any = None) -> None:
        self.cluster = Cluster.get()
        self.everybody = Quota.objects.filter(user=None, team=None).first()
        rules = ("half_life_days", "lift_after_hours", "protected_minutes", "preempt_lower")
        initial = {name: getattr(self.cluster, name) for name in rules}
        initial |= {f"everybody_{name}": getattr(self.everybody, name, None) for name in EVERYBODY}
        super().__init__(data, initial=initial)
        self.hosts = {node.name: node for node in Node.objects.prefetch_related("gpus").order_by("name")}
        self.teams = list(Team.objects.select_related("quota"))
        for number, node in enumerate(self.hosts.values()):
            self.fields[f"host-{number}"] = _count(node.name, initial=self._gpus(node))
        for team in self.teams:
            self._add_team(team)

    def _gpus(self, node: Node) -> int:
        return sum(not gpu.hidden for gpu in node.gpus.all())

    def _add_team(self, team: Team) -> None:
        quota = getattr(team, "quota", None)
        labels = {"gpus": gettext_lazy("GPUs at once"), "guaranteed_gpus": gettext_lazy("guaranteed GPUs")}
        for name, label in labels.items():
            self.fields[f"team-{team.pk}-{name}"] = _count(
                format_lazy("{}: {}", team.name, label), initial=getattr(quota, name, None)
            )
        self.fields[f"team-{team.pk}-shares"] = _count(
            format_lazy("{}: {}", team.name, gettext_lazy("shares")), initial=team.shares
        )
        self.fields[f"team-{team.pk}-class"] = _class(format_lazy("{}: {}", team.name, gettext_lazy("priority")))

    # --- as the page lays it out ---

    def host_fields(self) -> list[forms.BoundField]:
        return [self[f"host-{number}"] for number in range(len(self.hosts))]

    def team_rows(self) -> list[dict[str, Any]]:
        names = ("gpus", "guaranteed_gpus", "shares", "class")
        return [{"team": team, "fields": [self[f"team-{team.pk}-{name}"] for name in names]} for team in self.teams]

    def rule_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("half_life_days", "lift_after_hours", "protected_minutes", "preempt_lower")]

    def people_fields(self) -> list[forms.BoundField]:
        names = ("everybody_gpus", "everybody_running_jobs", "everybody_job_gpus", "user_classes")
        return [self[name] for name in names]

    # --- what was typed ---

    def clean_user_classes(self) -> dict[str, int]:
        """By primary key as text."""
        pairs = re.findall(r"([^\s,=]+)\s*=\s*([^\s,=]+)", self.cleaned_data["user_classes"])
        if re.sub(r"[^\s,=]+\s*=\s*[^\s,=]+", "", self.cleaned_data["user_classes"]).strip(" ,"):
            raise ValidationError(_("Write a user, =, and a priority, such as: alice=high bob=low"))
        known = dict(User.objects.filter(username__in=[name for name, _word in pairs]).values_list("username", "pk"))
        for name, word in pairs:
            if name not in known:
                raise ValidationError(_("There is no user “%(name)s”.") % {"name": name})
            if _class_of(word) is None:
                raise ValidationError(_("“%(word)s” is no priority: low, normal, high or urgent.") % {"word": word})
        return {str(known[name]): int(_class_of(word) or 0) for name, word in pairs}

    def clean(self) -> dict[str, Any]:
        """There must be a host left to play on."""
        typed = super().clean() or {}
        gone = {name for name, gpus in self._hosts().items() if not gpus}
        if not self.hosts:
            self.add_error(None, ValidationError(_("No host has joined yet, so there is nothing to play on.")))
        elif gone == set(self.hosts) and not typed.get("more_hosts"):
            self.add_error(None, ValidationError(_("There would be no host left: leave GPUs on one, or add hosts.")))
        return typed

    def changes(self) -> Changes:
        """Only what differs from how it is now. The form must be valid."""
        typed, cluster = self.cleaned_data, self.cluster
        half_life = typed["half_life_days"]
        quotas = {team.pk: getattr(team, "quota", None) for team in self.teams}
        teams = {str(pk): _bounds(typed, f"team-{pk}-", OF_TEAM, quota) for pk, quota in quotas.items()}
        return Changes(
            hosts=self._hosts(), more_hosts=typed["more_hosts"] or 0,
            teams={pk: bounds for pk, bounds in teams.items() if bounds}, shares=self._shares(),
            everybody=_bounds(typed, "everybody_", EVERYBODY, self.everybody),
            team_classes={str(team.pk): chosen for team in self.teams
                          if (chosen := typed[f"team-{team.pk}-class"]) is not None},
            user_classes=typed["user_classes"], rules=self._rules(),
            half_life=half_life * 86400.0 if half_life != cluster.half_life_days else None,
        )  # fmt: skip

    def _hosts(self) -> dict[str, int]:
        typed = {node.name: self.cleaned_data.get(f"host-{number}") for number, node in enumerate(self.hosts.values())}
        return {name: gpus for name, gpus in typed.items() if gpus is not None and gpus != self._gpus(self.hosts[name])}

    def _shares(self) -> dict[str, int]:
        typed = {team: self.cleaned_data[f"team-{team.pk}-shares"] for team in self.teams}
        return {str(team.pk): shares for team, shares in typed.items() if shares is not None and shares != team.shares}

    def _rules(self) -> dict[str, Any]:
        typed, cluster = self.cleaned_data, self.cluster
        found: dict[str, Any] = {}
        if typed["lift_after_hours"] != cluster.lift_after_hours:
            hours = typed["lift_after_hours"]
            found["lift_after"] = None if hours is None else hours * 3600.0
        if typed["protected_minutes"] != cluster.protected_minutes:
            found["protected_for"] = typed["protected_minutes"] * 60.0
        if typed["preempt_lower"] != cluster.preempt_lower:
            found["preempt_lower"] = typed["preempt_lower"]
        return found


def _bounds(typed: Mapping[str, Any], prefix: str, names: Iterable[str], now: Quota | None) -> dict[str, int | None]:
    """The limits that differ from those of a quota."""
    return {name: typed[prefix + name] for name in names if typed[prefix + name] != getattr(now, name, None)}


def _class_of(word: str) -> int | None:
    """By its English name or the reader's."""
    said = {str(label): value for value, label in Priority.choices}
    return CLASSES.get(word, said.get(word))
