"""Why a request is refused: what is wrong with it, and which limit it meets."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import units
from jobs.policy.explain import NEVER
from jobs.quotas import BUDGET_DAYS, Refusal
from jobs.wording import quantities as q
from jobs.wording.lookup import Params, Table, say

# The quantity that each field is counted in.
QUANTITIES: dict[str, Any] = {
    "gpus": q.gpus,
    "gpu_milli": q.gpu_share,
    "millicpus": q.cpus,
    "memory_mib": q.memory,
    "limit_seconds": q.duration,
}


def refusal(refused: Any, *, reader: str | None = None) -> str:
    """A `quotas.Refusal`, or its dict, as a sentence with the limit and the nearest request that would pass."""
    params: dict[str, Any] = dict(refused) if isinstance(refused, Mapping) else refused._asdict()
    params.update(params.pop("params", None) or {})
    code = str(params.get("code", "?"))
    if code not in QUOTAS:
        return say(_refusals(), code, params)
    said = quota(code, {**params, "whose": whose(params, reader)})
    return " ".join(filter(None, [said, _nearest(params)]))


def refusals(found: Iterable[Refusal], *, reader: str | None = None) -> list[tuple[str, str, str]]:
    """As `told`: (field, code, sentence)."""
    return [(refused.field, refused.code, sentence) for refused, sentence in told(found, reader=reader)]


def told(found: Iterable[Refusal], *, reader: str | None = None) -> list[tuple[Refusal, str]]:
    """Refusals of one request, each with its sentence, and one nearest value a field: the smallest.

    Where the user and the team both limit a field, one sentence names both, and the refusal is the tighter one's.
    """
    by_field: dict[str, list[Refusal]] = {}
    for refused in found:
        by_field.setdefault(refused.field, []).append(refused)
    return [line for same in by_field.values() for line in _of_one_field(same, reader)]


def _of_one_field(same: list[Refusal], reader: str | None) -> Iterator[tuple[Refusal, str]]:
    own, theirs = ([r for r in same if r.scope == scope] for scope in ("user", "team"))
    in_one_unit = same[0].field in QUANTITIES and same[0].field != "gpu_milli"
    in_one_unit = in_one_unit and not any(r.code.startswith(("BUDGET", "QUOTA_MODEL")) for r in same)
    in_one_unit = in_one_unit and all(r.limit for r in same)
    if in_one_unit and len(own) == len(theirs) == 1:
        yield min(same, key=lambda r: r.limit), _both(own[0], theirs[0], reader)
        return
    passing = [r.nearest for r in same if r.nearest is not None and all(r.limit for r in same)]
    least = min(passing, default=None)
    for refused in same:
        shown = refused if refused.nearest == least else refused._replace(nearest=None)
        yield refused, refusal(shown, reader=reader)


def _both(own: Refusal, theirs: Refusal, reader: str | None) -> str:
    """A quantity that is above the user's limit and above the team's."""
    quantity, (mine, team) = QUANTITIES[own.field], (own.nearest or 0, theirs.nearest or 0)
    text = _("%(whose)s is %(own)s, that of team %(team)s is %(theirs)s; %(asked)s asked. %(nearest)s would pass.")
    return text % {
        "whose": whose(own.as_dict(), reader), "own": quantity(mine), "team": theirs.name, "theirs": quantity(team),
        "asked": _("no limit") if own.asked is None else quantity(own.asked), "nearest": quantity(min(mine, team)),
    }  # fmt: skip


def problem(found: Any) -> str:
    """A `request.Problem` as a sentence."""
    if found.code in NEVER:
        from jobs.wording.waits import wait_reason

        return wait_reason(found.params)
    return say(PROBLEMS, found.code, found.params)


def whose(params: Params, reader: str | None) -> str:
    """ "Your quota", or the quota of somebody else by name, as the beginning of a sentence."""
    if params.get("scope") == "team":
        return _("The quota of team %(name)s") % {"name": params.get("name", "?")}
    if reader is not None and params.get("name") not in (None, "", reader):
        return _("The quota of %(name)s") % params
    return _("Your quota")


def _nearest(params: Params) -> str:
    quantity = QUANTITIES.get(params.get("field", ""))
    if params.get("nearest") is None or quantity is None:
        return ""
    return _("%(nearest)s would pass.") % {"nearest": quantity(params["nearest"])}


def _in_use(text: str, p: Params, quantity: Any) -> str:
    return text % {
        "whose": p["whose"], "limit": quantity(p["limit"]), "used": quantity(p["used"]), "asked": quantity(p["asked"])
    }  # fmt: skip


def _in_use_counts(p: Params) -> str:
    text = _("%(whose)s (%(limit)s) is in use: %(used)s used, %(asked)s asked.")
    numbers = {name: f"{p[name]:.3f}".rstrip("0").rstrip(".") for name in ("used", "asked")}
    return text % {**p, **numbers, "limit": _model_gpus(p)}


def _model_gpus(p: Params) -> str:
    """A number of GPUs, of the one model that a limit is about."""
    if p.get("model"):
        return _("%(gpus)s of model %(model)s") % {"gpus": q.gpus(p["limit"]), "model": p["model"]}
    return q.gpus(p["limit"])


# "Not now": the limit is in use, and waiting helps.
IN_USE: Table = {
    "QUOTA_GPUS": _in_use_counts,
    "QUOTA_MODEL": _in_use_counts,
    "QUOTA_CPUS": lambda p: _in_use(_("%(whose)s (%(limit)s) is in use: %(used)s used, %(asked)s asked."), p, q.cpus),
    "QUOTA_MEMORY": lambda p: _in_use(
        _("%(whose)s (%(limit)s of memory) is in use: %(used)s used, %(asked)s asked."), p, q.memory
    ),
}


def _running(p: Params) -> str:
    if p["limit"] == 0:
        return _("%(whose)s allows no running jobs.") % p
    text = ngettext(
        "%(whose)s allows %(limit)d running job, and %(used)d runs.",
        "%(whose)s allows %(limit)d running jobs, and %(used)d run.",
        p["limit"],
    )
    return text % p


def _model(p: Params) -> str:
    text = _("%(whose)s is %(limit)s of model %(model)s at once; %(asked)s asked.")
    return text % {**p, "limit": q.gpus(p["limit"]), "asked": q.gpus(p["asked"])}


def _interactive(p: Params) -> str:
    if p["limit"] == 0:
        return _("%(whose)s allows no interactive jobs.") % p
    text = ngettext(
        "%(whose)s allows %(limit)d interactive job at once, and %(used)d runs.",
        "%(whose)s allows %(limit)d interactive jobs at once, and %(used)d run.",
        p["limit"],
    )
    return text % p


def _queued(p: Params) -> str:
    text = ngettext(
        "%(whose)s allows %(limit)d waiting job, and %(used)d waits: wait for one to start, or cancel one.",
        "%(whose)s allows %(limit)d waiting jobs, and %(used)d wait: wait for one to start, or cancel one.",
        p["limit"],
    )
    return text % p


def _above(text: str, p: Params, quantity: Any) -> str:
    return text % {"whose": p["whose"], "limit": quantity(p["limit"]), "asked": quantity(p["asked"])}


def _longest(p: Params) -> str:
    if p["asked"] is None:
        return _("%(whose)s asks for a time limit of at most %(limit)s.") % {
            "whose": p["whose"], "limit": q.duration(p["limit"])
        }  # fmt: skip
    return _above(_("%(whose)s allows a time limit of at most %(limit)s; %(asked)s asked."), p, q.duration)


def _highest(p: Params) -> str:
    from jobs.wording.states import priority_label

    return _above(_("%(whose)s allows priority up to %(limit)s; %(asked)s asked."), p, priority_label)


def _budget_used(p: Params) -> str:
    text = _(
        "%(whose)s (%(limit)s in %(days)d days) is used up: %(used)s used or promised, and this job may take %(asked)s."
    )
    said = _budget(text, p)
    if not p.get("back_at"):
        return said
    back = _("Enough of it is back by %(at)s, if none of it is used before.") % {"at": q.clock_time(p["back_at"])}
    return f"{said} {back}"


def _budget_size(p: Params) -> str:
    if p["asked"] is None:
        return _budget(_("%(whose)s (%(limit)s in %(days)d days) needs every GPU job to have a time limit."), p)
    return _budget(_("%(whose)s is %(limit)s in %(days)d days, and this job alone may take %(asked)s."), p)


def _budget(text: str, p: Params) -> str:
    hours = {name: q.gpu_hours(p[name]) for name in ("limit", "used", "asked") if p.get(name) is not None}
    return text % {**hours, "whose": p["whose"], "days": p.get("days") or BUDGET_DAYS}


# "Never": more than the limit itself; and limits that read the same either way.
QUOTAS: Table = {
    "QUOTA_GPUS": lambda p: _above(_("%(whose)s is %(limit)s at once; %(asked)s asked."), p, q.gpus),
    "QUOTA_CPUS": lambda p: _above(_("%(whose)s is %(limit)s at once; %(asked)s asked."), p, q.cpus),
    "QUOTA_MEMORY": lambda p: _above(_("%(whose)s is %(limit)s of memory at once; %(asked)s asked."), p, q.memory),
    "QUOTA_MODEL": _model,
    "QUOTA_INTERACTIVE": _interactive,
    "QUOTA_RUNNING": _running,
    "QUOTA_QUEUED": _queued,
    "BUDGET_USED": _budget_used,
    "BUDGET_SIZE": _budget_size,
    "LARGEST_JOB": lambda p: _above(_("%(whose)s allows %(limit)s in one job; %(asked)s asked."), p, q.gpus),
    "LONGEST_LIMIT": _longest,
    "HIGHEST_PRIORITY": _highest,
}


# Of a limit that is 0: nothing less would pass.
NOTHING: Table = {
    "QUOTA_GPUS": lambda p: _("%(whose)s allows no GPUs; a job without them would pass.") % p,
    "LARGEST_JOB": lambda p: _("%(whose)s allows no GPUs in a job; one without them would pass.") % p,
    "QUOTA_MODEL": lambda p: _("%(whose)s allows no GPUs of model %(model)s.") % p,
    "QUOTA_CPUS": lambda p: _("%(whose)s allows no CPUs, so no job can run.") % p,
    "QUOTA_MEMORY": lambda p: _("%(whose)s allows no memory, so no job can run.") % p,
    "LONGEST_LIMIT": lambda p: _("%(whose)s allows no run time, so no job can run.") % p,
    "BUDGET_SIZE": lambda p: _("%(whose)s allows no GPU-hours; a job without GPUs would pass.") % p,
    "QUOTA_QUEUED": lambda p: _("%(whose)s allows no waiting jobs, so none can be submitted.") % p,
}


def quota(code: str, params: Params) -> str:
    """What a limit never allows, or allows no longer, as a sentence; `params` has `whose` it is."""
    return say(NOTHING if params.get("limit") == 0 and code in NOTHING else QUOTAS, code, params)


def _refusals() -> Table:
    from jobs.wording.waits import WAITS

    return {**WAITS, **PROBLEMS}


def _bad_image(p: Params) -> str:
    if p.get("nearest"):
        return _('"%(image)s" is no image name: image names are lower-case. Did you mean "%(nearest)s"?') % p
    return _('"%(image)s" is no image name; it looks like registry/path:tag, without spaces.') % p


def _no_other_place(p: Params) -> str:
    from jobs.wording.waits import wait_reason

    why = " ".join(wait_reason(reason) for reason in p.get("reasons") or ())
    said = _("There is no other place for it now, so it is left where it is.")
    return f"{said} {why}".strip()


def _only_less(p: Params, quantity: Any) -> str:
    """A waiting job is asked to be larger than it was submitted, or smaller than any may be."""
    if p.get("asked", p["least"]) < p["least"]:
        return _("At least %(least)s.") % {"least": quantity(p["least"])}
    text = _(
        "It was submitted with %(most)s. A waiting job can be made smaller, and as large as that again, "
        "but no larger: for more, cancel it and submit a new one."
    )
    return text % {"most": quantity(p["most"] or 0)}


def _only_fewer_labels(p: Params) -> str:
    if not p.get("first"):
        return _("It was submitted without labels; a waiting job gets no new ones.")
    return _("It was submitted with the labels %(first)s; a waiting job gets no others.") % {
        "first": q.names(p["first"])
    }


PROBLEMS: Table = {
    "NAME_EMPTY": lambda p: _("Give the job a name."),
    "NAME_LONG": lambda p: _("The name has %(length)d characters; at most %(most)d fit.") % p,
    "NAME_CONTROL": lambda p: _("The name has invisible control characters; type it anew."),
    "IMAGE_EMPTY": lambda p: _("Name the image to run."),
    "BAD_IMAGE_REF": _bad_image,
    "COMMAND_KIND": lambda p: _('The command is "script" or "image"; "%(kind)s" is neither.') % p,
    "SCRIPT_EMPTY": lambda p: _("Write the commands to run, or choose the image's own entry point."),
    "SCRIPT_LONG": lambda p: _("The script is longer than %(most_kib)d KiB; put it into a file of your workspace.") % p,
    "NUL": lambda p: _("There is a NUL byte in it, which no command can take."),
    "TOO_SMALL": lambda p: _("At least %(least)s.") % p,
    "CPUS_SMALL": lambda p: _("At least %(least)s CPUs.") % p,
    "MEMORY_SMALL": lambda p: _("At least %(least)s of memory.") % {"least": q.memory(p["least_mib"])},
    "SHM_SMALL": lambda p: _("At least %(least)s of shared memory.") % {"least": q.memory(p["least_mib"])},
    "SHM_ABOVE_MEMORY": lambda p: (
        _("Shared memory counts as memory, so at most %(most)s.") % {"most": q.memory(p["memory_mib"])}
    ),
    "LIMIT_SMALL": lambda p: _("The time limit is at least %(least)d second.") % p,
    "GRACE_RANGE": lambda p: _("From 0 to %(most)d seconds.") % p,
    "PRIORITY_RANGE": lambda p: _("Choose one of the priorities offered."),
    "SHARE_RANGE": lambda p: _("A share is between 1 and 100 percent of a GPU."),
    "SHARE_OF_ONE": lambda p: _("A share is part of one GPU: ask for 1 GPU, or for whole ones."),
    "SHARE_OF_PROFILE": lambda p: _("A MIG instance is part of a GPU already: leave the share at 100 percent."),
    "PROFILE_FORM": lambda p: _('"%(profile)s" is no MIG profile; it looks like 1g.10gb.') % p,
    "PROFILE_OF_ONE": lambda p: _(
        "A job can use one MIG instance only, whatever it is given: ask for 1 GPU, or for whole ones."
    ),
    "LEAST_RANGE": lambda p: (
        _("From 1 to the number of GPUs, %(most)d.") % p if p["most"] else _("Only a job with GPUs can be elastic.")
    ),
    "LABEL_FORM": lambda p: _('"%(label)s" is no label; it looks like disk=nvme.') % p,
    "SIGNAL_UNKNOWN": lambda p: _('"%(name)s" is none of the signals offered: %(names)s.') % p,
    "ONLY_LESS": lambda p: _only_less(p, q.gpus),
    "ONLY_SMALLER": lambda p: _only_less(p, QUANTITIES[p["field"]]),
    "ONLY_SHORTER": lambda p: _only_less({"least": 1, **p}, q.duration),
    "ONLY_FEWER_LABELS": _only_fewer_labels,
    "NO_GPUS_TO_MOVE": lambda p: _("It has no GPUs: only when its host is closed can it be moved away."),
    "NOT_ELASTIC": lambda p: _("Only an elastic job, which has a smallest number of GPUs, can go on with another one."),
    "SAME_SIZE": lambda p: _("It has %(gpus)s already.") % {"gpus": q.gpus(p["gpus"])},
    "NO_OTHER_PLACE": _no_other_place,
    "NOT_RUNNING": lambda p: _("It is not running, or is being stopped already."),
    "NO_DEADLINE": lambda p: _("It has no time limit, so there is nothing to extend."),
    "EXTENSION_RANGE": lambda p: _("Ask for a minute at least."),
    "MODEL_WITHOUT_GPUS": lambda p: _("A GPU model or GPU memory is asked for, but no GPU."),
    "VARIABLE_NAME": lambda p: (
        _('Row %(row)d: "%(name)s" is no variable name; use letters, digits and _, not beginning with a digit.') % p
    ),
    "VARIABLE_RESERVED": lambda p: _("Row %(row)d: %(name)s is set by Dockyard and cannot be chosen.") % p,
    "VARIABLE_TWICE": lambda p: _("Row %(row)d: %(name)s is there twice.") % p,
    "VARIABLE_NUL": lambda p: _("Row %(row)d: the value of %(name)s has a NUL byte, which no variable can hold.") % p,
    "ENVIRONMENT_LONG": lambda p: _("The variables together are longer than %(most_kib)d KiB.") % p,
    "SECRET_MISSING": lambda p: (
        _("Row %(row)d: enter the value of %(name)s again; secrets are not shown or copied.") % p
        if p.get("again")
        else _("Row %(row)d: enter the value of the secret %(name)s.") % p
    ),
    "BAD_DURATION": lambda p: _(units.WORDS["BAD_DURATION"]) % p,
    "BAD_SIZE": lambda p: _(units.WORDS["BAD_SIZE"]) % p,
    "BAD_CPUS": lambda p: _(units.WORDS["BAD_CPUS"]) % p,
    "QUANTITY_LARGE": lambda p: _(units.WORDS["QUANTITY_LARGE"]) % p,
    "START_OVER": lambda p: (
        _("%(at)s is over. Leave it empty for a start as soon as it can.") % {"at": q.clock_time(p["at"])}
    ),
    "START_FAR": lambda p: _("That is more than a year away; at most a year from now."),
    "NOT_IN_TEAM": lambda p: _("You are not a member of team %(team)s.") % p,
    "NO_LIMIT_FORBIDDEN": lambda p: _("Set a time limit: you may not run jobs without one."),
    "IMAGE_NOT_ALLOWED": lambda p: _("The image %(image)s is not among those that an administrator allows.") % p,
    "MOUNTS_AS_ROOT": lambda p: _("Your jobs run as root, and such jobs get no shared mounts."),
    "MOUNT_NOT_ALLOWED": lambda p: _("The team may not use one of these mounts."),
    "BAD_QUOTES": lambda p: _("A quotation mark is opened and never closed."),
}
