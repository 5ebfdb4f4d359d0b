"""A what-if's changes and its answer, in the reader's language."""

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import wording
from jobs.models import Team
from jobs.policy.changes import Changes


def described(changes: Mapping[str, Any]) -> list[str]:
    """One short sentence for each change; one in all when there is none."""
    found = Changes.from_json(changes)
    said = [*_hosts(found), *_limits(found), *_classes(found), *_rules(found)]
    return said or [_("nothing changed")]


def _hosts(found: Changes) -> list[str]:
    said = [
        _("%(host)s with %(gpus)s") % {"host": host, "gpus": wording.gpus(gpus)}
        if gpus else _("without %(host)s") % {"host": host}
        for host, gpus in found.hosts.items()
    ]  # fmt: skip
    if found.more_hosts:
        said.append(ngettext("%(n)d more host", "%(n)d more hosts", found.more_hosts) % {"n": found.more_hosts})
    return said


def _limits(found: Changes) -> list[str]:
    names = {str(pk): name for pk, name in Team.objects.filter(pk__in=[*found.teams, *found.shares])
             .values_list("pk", "name")}  # fmt: skip
    said = [
        _limit(names.get(pk, pk), name, value) for pk, fields in found.teams.items() for name, value in fields.items()
    ]
    said += [_limit(_("each user"), name, value) for name, value in found.everybody.items()]
    said += [_("%(who)s: %(n)d shares") % {"who": names.get(pk, pk), "n": n} for pk, n in found.shares.items()]
    return said


def _limit(who: str, name: str, value: int | None) -> str:
    field = {
        "gpus": _("GPUs at once"), "guaranteed_gpus": _("guaranteed GPUs"), "running_jobs": _("running jobs"),
        "job_gpus": _("GPUs of the largest job"),
    }.get(name, name)  # fmt: skip
    said = _("none") if value is None else str(value)
    return _("%(who)s: %(field)s %(value)s") % {"who": who, "field": field, "value": said}


def _classes(found: Changes) -> list[str]:
    teams = dict(Team.objects.filter(pk__in=found.team_classes).values_list("pk", "name"))
    users = dict(get_user_model().objects.filter(pk__in=found.user_classes).values_list("pk", "username"))
    chosen = [(teams.get(int(pk), pk), value) for pk, value in found.team_classes.items()]
    chosen += [(users.get(int(pk), pk), value) for pk, value in found.user_classes.items()]
    words = _("%(who)s: priority %(class)s")
    return [words % {"who": who, "class": wording.priority_label(value)} for who, value in chosen]


def _rules(found: Changes) -> list[str]:
    said = []
    if found.half_life is not None:
        said.append(_("half-life of usage %(time)s") % {"time": wording.duration(found.half_life)})
    if "lift_after" in found.rules:
        after = found.rules["lift_after"]
        said.append(_("no class is lifted") if after is None
                    else _("lift a class after %(time)s") % {"time": wording.duration(after)})  # fmt: skip
    if "protected_for" in found.rules:
        said.append(_("protected for %(time)s") % {"time": wording.duration(found.rules["protected_for"])})
    if "preempt_lower" in found.rules:
        said.append(_("higher priority may stop preemptible jobs") if found.rules["preempt_lower"]
                    else _("higher priority stops nothing"))  # fmt: skip
    return said


# --- the answer ---


def rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The facts side by side: label, now, then, and whether `then` is better (1), worse (-1) or the same (0)."""
    now, then = result["now"], result["then"]
    labels = {"mean": _("Mean wait"), "p50": _("Median wait"), "p90": _("Nine in ten at most")}
    waits = [_row(label, now["waits"][key], then["waits"][key], seconds, better=-1) for key, label in labels.items()]
    facts = (
        ("makespan", _("Makespan"), seconds, -1), ("utilisation", _("Utilisation"), percent, 1),
        ("fragmentation", _("Fragmented GPUs"), percent, -1), ("gpus", _("GPUs"), _plain, 0),
        ("preemptions", _("Stopped for others"), _plain, -1), ("moves", _("Moved for others"), _plain, -1),
        ("never", _("Jobs that could never start"), _plain, -1),
    )  # fmt: skip
    known = [fact for fact in facts if fact[0] in now]  # a stored result may be older than what it lacks
    return [*waits, *(_row(label, now[key], then[key], say, better=better) for key, label, say, better in known)]


def never(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Under which rules jobs could never start: label, how many more there are, and the first with their reasons."""
    said = []
    for key, label in (("now", _("As it is")), ("then", _("With the changes"))):
        first = result[key].get("never_first", [])
        jobs = [{**row, "why": wording.wait_reason(row["reason"], reader="")} for row in first]
        said.append({"label": label, "jobs": jobs, "more": result[key]["never"] - len(jobs)})
    return [group for group in said if group["jobs"]]


def _row(label: str, now: float | None, then: float | None, say: Callable[[float | None], str], *, better: int) -> Any:
    said_now, said_then = say(now), say(then)
    sign = 0 if now is None or then is None or said_now == said_then else (1 if then > now else -1)
    return {"label": label, "now": said_now, "then": said_then, "better": sign * better}


def seconds(value: float | None) -> str:
    return "–" if value is None else wording.duration(value)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
