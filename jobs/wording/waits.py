"""Why a job waits."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.wording import quantities as q
from jobs.wording.lookup import Params, Table, say
from jobs.wording.refusals import IN_USE, QUOTAS, quota, whose


def wait_reason(reason: Mapping[str, Any], *, reader: str | None = None) -> str:
    """One reason of `Job.wait_reasons` as a sentence.

    `reader` is the user name of who reads it: "your quota" is then said only of the reader's own.
    """
    code = str(reason.get("code", "?"))
    if code in IN_USE and (reason.get("asked") or 0) <= (reason.get("limit") or 0):
        return say(IN_USE, code, {**reason, "whose": whose(reason, reader)})
    if code in QUOTAS:
        return quota(code, {**reason, "whose": whose(reason, reader)})
    return say(WAITS, code, {"count": 1, **reason} if code.startswith("GPU_") else reason)


def way_out(reason: Mapping[str, Any]) -> str:
    """What to change when a reason is final, which is when no waiting helps."""
    code = str(reason.get("code", ""))
    if code == "NO_GPU_MODEL":
        return _("Cancel it and submit it again with a GPU model that is there, or with any.")
    if code == "NO_SHARED_GPU":
        return _("Cancel it and submit it again with a whole GPU, or ask an administrator to cut a GPU into slots.")
    if code == "HELD_BY_IMAGE":
        return _("Cancel it and submit it again with an image that is allowed, or ask an administrator to allow it.")
    if code in QUOTAS:
        return _("Cancel it and submit it again asking for less, or ask an administrator to raise the limit.")
    return _("Cancel it and submit it again asking for less, or ask an administrator for a host that has as much.")


def _paused(p: Params) -> str:
    if p.get("reason"):
        return _("An administrator has paused all starts: %(reason)s") % p
    return _("An administrator has paused all starts.")


def _cordoned(p: Params) -> str:
    """The hosts, each with the reason that an admin has written down, once where it is the same for all."""
    why, nodes = p.get("why") or {}, [p["nodes"]] if isinstance(p["nodes"], str) else list(p["nodes"])
    text = _("Closed to new jobs by an administrator: %(nodes)s.")
    same = {why.get(node, "") for node in nodes}
    if len(same) == 1 and same != {""}:
        return text % {"nodes": f"{q.names(nodes)} ({same.pop().rstrip('.')})"}
    told = [f"{node} ({why[node].rstrip('.')})" if why.get(node) else node for node in nodes]
    return text % {"nodes": q.names(told)}


def _driver(p: Params) -> str:
    from gpus.models import Node

    labels = dict(Node.GpuStatus.choices)
    return _("%(node)s takes no GPU jobs: %(status)s.") % {
        "node": p["node"], "status": labels.get(p["status"], p["status"])
    }  # fmt: skip


def _ahead(p: Params) -> str:
    text = ngettext(
        "%(count)d job ahead waits for the same: #%(first)s.",
        "%(count)d jobs ahead wait for the same, first of them #%(first)s.",
        p["count"],
    )
    return text % p


def _busy_gpus(p: Params) -> str:
    free = max(p.get("free_in_all", 0), p["free"])
    found = {**p, "asked": q.gpus(p["asked"]), "all": free}
    if not free:
        text = ngettext(
            "The only GPU that would do is in use.", "All %(total)d GPUs that would do are in use.", p["total"]
        )
    elif free >= p["asked"]:
        text = ngettext(
            "%(all)d of %(total)d GPUs is free, but not on one host: "
            "%(asked)s asked, and %(node)s has the most, %(free)d.",
            "%(all)d of %(total)d GPUs are free, but not on one host: "
            "%(asked)s asked, and %(node)s has the most, %(free)d.",
            free,
        )
    else:
        text = ngettext(
            "%(asked)s asked, and %(all)d of %(total)d is free.",
            "%(asked)s asked, and %(all)d of %(total)d are free.",
            free,
        )
    return text % found


def _outside(p: Params) -> str:
    text = ngettext(
        "%(count)d GPU on %(node)s is in use outside Dockyard%(by)s.",
        "%(count)d GPUs on %(node)s are in use outside Dockyard%(by)s.",
        p["count"],
    )
    by = q.names(p.get("by") or "") or ", ".join(dict.fromkeys(map(_outsider, p.get("outsiders", ()))))
    return text % {**p, "by": _(" by %(who)s") % {"who": by} if by else ""}


def _outsider(found: Params) -> str:
    """Who is on the GPU; memory that no process is listed for has no pid."""
    if found.get("pid") is None:
        return _("a process that the driver does not list")
    if found.get("user"):
        return _("%(user)s (process %(pid)s)") % found
    return _("process %(pid)s") % found


def _quarantined(p: Params) -> str:
    text = ngettext(
        "%(count)d GPU on %(node)s is quarantined: %(why)s.",
        "%(count)d GPUs on %(node)s are quarantined: %(why)s.",
        p["count"],
    )
    return text % p


def _hidden(p: Params) -> str:
    return ngettext(
        "%(count)d GPU on %(node)s is not offered to jobs.", "%(count)d GPUs on %(node)s are not offered to jobs.",
        p["count"],
    ) % p  # fmt: skip


def _unhealthy(p: Params) -> str:
    return ngettext(
        "%(count)d GPU on %(node)s is not healthy.", "%(count)d GPUs on %(node)s are not healthy.", p["count"]
    ) % p  # fmt: skip


def _unsampled(p: Params) -> str:
    return ngettext(
        "%(count)d GPU on %(node)s has no fresh reading yet, so it counts as busy.",
        "%(count)d GPUs on %(node)s have no fresh readings yet, so they count as busy.",
        p["count"],
    ) % p  # fmt: skip


def _busy(text: str, p: Params, quantity: Any) -> str:
    return text % {"asked": quantity(p["asked"]), "free": quantity(p["free"]), "node": p["node"]}


def _large(text: str, p: Params, quantity: Any) -> str:
    return text % {"asked": quantity(p["asked"]), "most": quantity(p["most"]), "node": q.names(p["node"])}


def _no_model(p: Params) -> str:
    if p.get("models"):
        text = _("No host has the GPU model %(model)s; there are %(models)s.")
        return text % {"model": p["model"], "models": q.names(p["models"])}
    return _("No host has the GPU model %(model)s.") % p


def _not_shared(p: Params) -> str:
    if p.get("models"):
        text = _("No GPU like this is shared; shared are %(models)s. Ask for one of these or for a whole GPU.")
        return text % {"models": q.names(p["models"])}
    return _("No GPU is shared. Ask for a whole one, or have an administrator cut a GPU into slots.")


def _no_gpu_memory(p: Params) -> str:
    text = _("No GPU has %(asked)s of memory; the largest has %(most)s.")
    return text % {"asked": q.memory(p["asked_mib"]), "most": q.memory(p["most_mib"] or 0)}


def _making_way(p: Params) -> str:
    text = ngettext(
        "%(count)d job on %(node)s is being stopped to make room for it.",
        "%(count)d jobs on %(node)s are being stopped to make room for it.",
        p["count"],
    )
    return text % p


def _would_make_way(p: Params) -> str:
    text = ngettext(
        "%(count)d job on %(node)s would be stopped to make room for it.",
        "%(count)d jobs on %(node)s would be stopped to make room for it.",
        p["count"],
    )
    return text % p


def _reserved(p: Params) -> str:
    if p.get("at"):
        text = _("%(node)s is kept for job #%(job)s, which starts there by %(at)s; this job would run longer.")
        return text % {**p, "at": q.clock_time(p["at"])}
    return _("%(node)s is kept for job #%(job)s, which goes before it.") % p


def _protected(p: Params) -> str:
    text = _("Job #%(job)s may be stopped for it, but not before %(until)s: it is protected until then.")
    return text % {**p, "until": q.clock_time(p["until"])}


def _no_profile(p: Params) -> str:
    if p.get("profiles"):
        text = _("No host has a MIG instance %(profile)s; there are %(profiles)s.")
        return text % {"profile": p["profile"], "profiles": q.names(p["profiles"])}
    if p.get("profile"):
        return _("No host has a MIG instance %(profile)s.") % p
    return _("All GPUs are cut into MIG instances; ask for one of them.")


WAITS: Table = {
    "PAUSED": _paused,
    "HELD_BY_USER": lambda p: _("On hold: it waits until it is released."),
    "HELD_BY_ADMIN": lambda p: _("An administrator has put it on hold, and only an administrator can release it."),
    "HELD_BY_IMAGE": lambda p: _("Its image is no longer among those that an administrator allows."),
    "START_AFTER": lambda p: _("It starts not before %(at)s, as asked.") % {"at": q.clock_time(p["at"])},
    "NOT_LOOKED_AT": lambda p: _("Just submitted: the scheduler looks at it within seconds."),
    "NO_NODE": lambda p: _("No host has joined yet; an administrator has to start one."),
    "NODES_SILENT": lambda p: _("No sign of life from %(nodes)s.") % {"nodes": q.names(p["nodes"])},
    "NODES_RETURNING": lambda p: (
        _("%(nodes)s was given up, and is cleared first of what runs there.") % {"nodes": q.names(p["nodes"])}
    ),
    "NODES_CORDONED": _cordoned,
    "DRIVER": _driver,
    "ENGINE": lambda p: _("%(node)s takes no jobs: %(message)s.") % {**p, "message": str(p["message"]).rstrip(".")},
    "DISK": lambda p: (
        _("%(node)s takes no jobs: less than %(least)s are free on the disk of %(path)s.")
        % {**p, "least": q.memory(p["least_mib"])}
    ),
    "NO_GPU_MODEL": _no_model,
    "NO_GPU_PROFILE": _no_profile,
    "NO_GPU_MEMORY": _no_gpu_memory,
    "NO_SHARED_GPU": _not_shared,
    "NO_LABELS": lambda p: _("No host has the labels %(labels)s.") % {"labels": q.names(p["labels"])},
    "TOO_LARGE_GPUS": lambda p: _large(_("No host has %(asked)s; the largest, %(node)s, has %(most)s."), p, q.gpus),
    "TOO_LARGE_CPUS": lambda p: _large(
        _("No host offers %(asked)s; the largest, %(node)s, offers %(most)s."), p, q.cpus
    ),
    "TOO_LARGE_MEMORY": lambda p: _large(
        _("No host offers %(asked)s of memory; the largest, %(node)s, offers %(most)s."), p, q.memory
    ),
    "TOO_LARGE_TOGETHER": lambda p: _("No single host has the GPUs, CPUs and memory asked for together."),
    "BUSY_GPUS": _busy_gpus,
    "BUSY_CPUS": lambda p: _busy(_("The CPUs are busy: %(asked)s asked, %(free)s free on %(node)s."), p, q.cpus),
    "BUSY_MEMORY": lambda p: _busy(_("The memory is in use: %(asked)s asked, %(free)s free on %(node)s."), p, q.memory),
    "BUSY_TOGETHER": lambda p: _("No host has all that it asks for free at once."),
    "GPU_BUSY_OUTSIDE": _outside,
    "GPU_HIDDEN": _hidden,
    "GPU_QUARANTINED": _quarantined,
    "GPU_UNHEALTHY": _unhealthy,
    "GPU_UNSAMPLED": _unsampled,
    "KEPT_FOR": lambda p: _("Freed GPUs on %(node)s are kept for job #%(job)s, which has waited longest.") % p,
    "AHEAD": _ahead,
    "MAKING_WAY": _making_way,
    "WOULD_MAKE_WAY": _would_make_way,
    "RESERVED_FOR": _reserved,
    "PROTECTED": _protected,
    "FITS_WITHIN": lambda p: (
        _("It would start now with a time limit of %(limit)s.") % {"limit": q.duration(p["seconds"])}
    ),
    "FITS_ON": lambda p: _("It would start now on the GPU model %(model)s.") % p,
    "FITS_WITHOUT": lambda p: _("It would start now on a host without %(labels)s.") % {"labels": q.names(p["labels"])},
    "FITS_WITH_CPUS": lambda p: _("It would start now with %(cpus)s.") % {"cpus": q.cpus(p["millicpus"])},
    "FITS_WITH_MEMORY": lambda p: (
        _("It would start now with %(size)s of memory.") % {"size": q.memory(p["memory_mib"])}
    ),
    "FITS_WITH": lambda p: _("It would fit now with %(gpus)s.") % {"gpus": q.gpus(p["gpus"])},
}
