"""What happened to a job, how far its start is, and what to watch out for."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from gpus.readings import short_uuid
from jobs.models import JobEvent, Run
from jobs.states import RunState, Wish
from jobs.wording import quantities as q
from jobs.wording.asked import amount
from jobs.wording.ends import end_label
from jobs.wording.lookup import Params, Table, say

AMENDABLE = ("gpus", "millicpus", "memory_mib", "limit_seconds", "gpu_model", "node_labels")


def event_sentence(event: JobEvent) -> str:
    """One line of the job's journal, with who did it where somebody did."""
    params = {"old": event.old_state, "new": event.new_state, **event.params}
    said = say(EVENTS, event.kind, params)
    if event.actor_id is None or event.actor is None:
        return said
    return _("%(what)s, by %(who)s") % {"what": said, "who": event.actor.username}


def progress(run: Run | None) -> str:
    """How far a placed or starting run is."""
    if run is None:
        return _("Placed; its host has not begun yet.")
    found = run.progress or {"code": "WAITING_FOR_NODE" if run.state == RunState.PLACED else "STARTING"}
    return say(PROGRESS, str(found.get("code", "?")), {"node": run.node.name, **found})


def warning(found: Mapping[str, Any]) -> str:
    """One of `Run.warnings` as a sentence."""
    return say(WARNINGS, str(found.get("code", "?")), found)


def _moved(p: Params) -> str:
    from jobs.wording.states import state_label

    return _("%(old)s → %(new)s") % {"old": state_label(p["old"]), "new": state_label(p["new"])}


def _placed(p: Params) -> str:
    given = p.get("gpus")
    count = len(given) if isinstance(given, (list, tuple)) else int(given or 0)
    if not count:
        return _("Placed on %(node)s") % p
    return _("Placed on %(node)s with %(gpus)s") % {"node": p["node"], "gpus": q.gpus(count)}


def _wished(p: Params) -> str:
    if p.get("for"):
        return _wished_for(p)
    if p.get("gpus"):
        return _("Asked to go on with %(gpus)s") % {"gpus": q.gpus(p["gpus"])}
    return {
        Wish.CANCEL: _("Asked to stop"),
        Wish.SHUT_DOWN: _("Dockyard was shut down"),
        Wish.TIME_LIMIT: _("Its time limit is over"),
        Wish.DISK_LIMIT: _("It fills more of the disk than jobs may"),
        Wish.IDLE_RECLAIM: _("Its GPUs have been idle for too long"),
        Wish.REBIND: _("Asked to move to other GPUs"),
        Wish.PREEMPT: _("To make room for a job of higher priority"),
    }[Wish(p["wish"])]


def _wished_for(p: Params) -> str:
    """Which job it makes way for, and by which right that one goes first."""
    if p["wish"] == Wish.REBIND:
        return _("Asked to move to other GPUs, to make room for job #%(for)s") % p
    if p.get("why") == "GUARANTEE":
        return _("To make room for job #%(for)s, whose team is guaranteed the GPUs that this job had borrowed") % p
    return _("To make room for job #%(for)s, which has a higher priority") % p


def _extended(p: Params) -> str:
    text = _("Given %(more)s more, until %(until)s")
    said = text % {"more": q.duration(p["seconds"]), "until": q.clock_time(p["until"])}
    if not p.get("delayed"):
        return said
    late = ngettext("%(said)s; %(count)d job waits longer", "%(said)s; %(count)d jobs wait longer", p["delayed"])
    return late % {"said": said, "count": p["delayed"]}


def _amended(p: Params) -> str:
    """What a waiting job asks less of than before, or as much again, or otherwise."""
    after, before = p["after"], p.get("before") or {}
    said = ", ".join(amount(name, after[name]) for name in AMENDABLE if name in after)
    if any(_is_more(name, before.get(name), value) for name, value in after.items()):
        return _("Asks for more again: %(what)s") % {"what": said}
    if set(after) == {"gpu_model"}:
        return _("Asks for other GPUs now: %(what)s") % {"what": said}
    return _("Asks for less now: %(what)s") % {"what": said}


def _is_more(name: str, before: Any, after: Any) -> bool:
    if name not in AMENDABLE or name == "gpu_model" or before is None:
        return False
    return bool(len(before) < len(after) if name == "node_labels" else before < after)


def _reprioritised(p: Params) -> str:
    from jobs.wording.states import priority_label

    return _("Priority changed from %(old)s to %(new)s") % {
        "old": priority_label(p["old"]), "new": priority_label(p["new"])
    }  # fmt: skip


EVENTS: Table = {
    "SUBMITTED": lambda p: _("Submitted"),
    "MOVED": _moved,
    "PLACED": _placed,
    "ENDED": lambda p: _("Run ended: %(reason)s") % {"reason": end_label(p["reason"], gpus=p.get("gpus"))},
    "WISHED": _wished,
    "HELD": lambda p: _("Put on hold, as its owner's account was deactivated") if p.get("why") else _("Put on hold"),
    "RELEASED": lambda p: _("Released, as its owner's account is active again") if p.get("why") else _("Released"),
    "WARNED": warning,
    "EXTENDED": _extended,
    "AMENDED": _amended,
    "PINNED": lambda p: _("Pinned: it goes before all others"),
    "UNPINNED": lambda p: _("No longer pinned"),
    "REPRIORITISED": _reprioritised,
    "REORDERED": lambda p: _("Moved before #%(passed)s") % p if p["up"] else _("Moved behind #%(passed)s") % p,
    "TOLD_IDLE": lambda p: _("Its owner was told by e-mail that its GPUs are idle"),
    "WORKS_AGAIN": lambda p: _("Its GPUs work again"),
    "SIGNALLED": lambda p: _("Sent %(signal)s to its processes") % p,
}


def _pulling(p: Params) -> str:
    if not p.get("total_bytes"):
        return _("%(node)s is fetching the image %(image)s.") % p
    text = _("%(node)s is fetching the image %(image)s: %(done)s of %(total)s.")
    done, total = (q.memory(p[name] / (1 << 20)) for name in ("done_bytes", "total_bytes"))
    return text % {"node": p["node"], "image": p["image"], "done": done, "total": total}


PROGRESS: Table = {
    "WAITING_FOR_NODE": lambda p: _("Placed on %(node)s, which will begin in a moment.") % p,
    "PULLING": _pulling,
    "PULL_RETRY": lambda p: (
        _("The image registry allows no more downloads for now; next try at %(at)s.") % {"at": q.clock_time(p["at"])}
    ),
    "CREATING": lambda p: _("%(node)s is making the container.") % p,
    "STARTING": lambda p: _("%(node)s is starting the container.") % p,
}


def _outsider(p: Params) -> str:
    if p.get("by"):
        return _("Somebody else uses its GPU %(gpu)s outside Dockyard: %(by)s.") % {
            "gpu": short_uuid(p["uuid"]), "by": q.names(p["by"])
        }  # fmt: skip
    return _("Somebody else uses its GPU %(gpu)s outside Dockyard.") % {"gpu": short_uuid(p["uuid"])}


def _silent(p: Params) -> str:
    text = _("Its host %(node)s has been silent since %(since)s; the job may well go on, and its GPUs stay its own.")
    return text % {"node": p["node"], "since": q.clock_time(p["since"])}


def _idle(p: Params) -> str:
    said = _("Its GPUs have been idle since %(since)s.") % {"since": q.clock_time(p["since"])}
    if not p.get("stops_at"):
        return said
    return _("%(said)s Unless they work again, it is stopped at %(at)s.") % {
        "said": said,
        "at": q.clock_time(p["stops_at"]),
    }


def _disk_limit(p: Params) -> str:
    """How much of what is beyond its limit."""
    told = {name: q.memory(p[name] / 2**20) if p["counts"] == "bytes" else str(p[name]) for name in ("size", "most")}
    return {
        ("workspace", "bytes"): _("The files of its owner take %(size)s on this host, of %(most)s that they may."),
        ("workspace", "files"): _("Its owner has %(size)s files on this host, of %(most)s that may be."),
        ("scratch", "bytes"): _("Its container has written %(size)s outside /workspace, of %(most)s that it may."),
        ("scratch", "files"): _("Its container has made %(size)s files outside /workspace, of %(most)s that it may."),
    }[p["what"], p["counts"]] % told


WARNINGS: Table = {
    "DISK_LIMIT": _disk_limit,
    "GPUS_IDLE": _idle,
    "GPU_LOST": lambda p: (
        _("Its GPU %(gpu)s has been lost by the driver; the job will probably fail.") % {"gpu": short_uuid(p["uuid"])}
    ),
    "GPU_SICK": lambda p: (
        _("Its GPU %(gpu)s is not healthy (%(why)s); what it computes may be wrong.")
        % {"gpu": short_uuid(p["uuid"]), "why": p["why"]}
    ),
    "OUTSIDER": _outsider,
    "GRANT_MISMATCH": lambda p: _("The container got other GPUs than it was given, and was killed at once."),
    "KILL_STUCK": lambda p: _("The container does not end although it was killed; its GPUs stay taken until it does."),
    "LOG_STUCK": lambda p: (
        _("Its output cannot be written on the host (%(why)s); the job waits until there is room.") % p
    ),
    "PROCESS_OOM": lambda p: (
        _("One of its processes was killed for lack of memory: ask for more than %(memory)s next time.")
        % {"memory": q.memory(p["memory_mib"])}
    ),
    "NOT_VERIFIED": lambda p: _("It ended before it could be checked which GPUs it really saw."),
    "HOST_SILENT": _silent,
}
