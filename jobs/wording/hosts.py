"""What befell a host, how it is, and why one may not join or leave."""

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from gpus.models import HostEvent, Node
from jobs.wording import quantities as q
from jobs.wording.lookup import Params, Table, say
from jobs.wording.waits import wait_reason


def host_event(event: HostEvent) -> str:
    """One line of a host's journal, with who did it where somebody did."""
    said = say(EVENTS, event.kind, event.params)
    if event.actor_id is None or event.actor is None:
        return said
    return _("%(what)s, by %(who)s") % {"what": said, "who": event.actor.username}


def host_refusal(code: str, params: dict[str, Any]) -> str:
    """Why a host may not join, leave or be declared dead."""
    return say(REFUSALS, code, params)


def host_state(state: str) -> str:
    """How a host is, in a word or two."""
    return say(STATES, state, {})


def host_problem(code: str, params: dict[str, Any]) -> str:
    """What an administrator should look at."""
    return say(PROBLEMS, code, params)


def clock_skew(seconds: float | None) -> str:
    """How far a host's clock is off."""
    if seconds is None:
        return _("not known")
    if abs(seconds) < 0.1:
        return _("right to 0.1 s")
    words = {"seconds": f"{abs(seconds):.1f}"}
    return _("%(seconds)s s ahead") % words if seconds > 0 else _("%(seconds)s s behind") % words


def _disk(p: Params) -> str:
    words = {"free": q.memory(p["free_mib"]), "total": q.memory(p["total_mib"]), "path": p["path"]}
    return _("%(free)s of %(total)s are free on the disk of %(path)s.") % words


def _gpu(p: Params) -> str:
    return wait_reason(p["reason"])


def _closed(p: Params) -> str:
    return _("Closed to new jobs: %(why)s") % p if p.get("why") else _("Closed to new jobs")


def _dead(p: Params) -> str:
    return ngettext(
        "Declared dead; %(count)d job was given up here", "Declared dead; %(count)d jobs were given up here", p["count"]
    ) % {"count": p["count"]}


def _runs(p: Params) -> str:
    return ngettext(
        "%(count)d job holds something on %(node)s: move or end it first, or declare the host dead.",
        "%(count)d jobs hold something on %(node)s: move or end them first, or declare the host dead.",
        p["count"],
    ) % {"count": p["count"], "node": p["node"]}


EVENTS: Table = {
    "JOINED": lambda p: _("Joined from %(address)s") % p if p.get("address") else _("Joined"),
    "LEFT": lambda p: _("Removed: its access was taken away"),
    "STARTED": lambda p: _("Its node was started, version %(version)s") % p,
    "SILENT": lambda p: _("Fell silent"),
    "HEARD": lambda p: _("Was heard of again"),
    "CORDONED": _closed,
    "UNCORDONED": lambda p: _("Opened to new jobs"),
    "DECLARED_DEAD": _dead,
    "CAME_BACK": lambda p: _("Came back, and nothing of what was given up runs there any more"),
    "ENGINE_FAILED": lambda p: _("Its Docker engine: %(message)s") % p,
    "ENGINE_WORKS": lambda p: _("Its Docker engine works again"),
    "GPUS_FAILED": lambda p: _("Its GPUs: %(message)s") % {"message": Node.GpuStatus(p["status"]).label},
    "GPU_QUARANTINED": lambda p: _("GPU %(index)d takes no more jobs: %(why)s") % p,
    "GPUS_WORK": lambda p: _("Its GPUs work again"),
}

STATES: Table = {
    "left": lambda p: pgettext("host", "removed"),
    "new": lambda p: pgettext("host", "not heard of yet"),
    "dead": lambda p: pgettext("host", "declared dead"),
    "silent": lambda p: pgettext("host", "no sign of life"),
    "returning": lambda p: pgettext("host", "is being cleared"),
    "engine": lambda p: pgettext("host", "engine trouble"),
    "driver": lambda p: pgettext("host", "GPU trouble"),
    "full": lambda p: pgettext("host", "disk full"),
    "cordoned": lambda p: pgettext("host", "closed to new jobs"),
    "works": lambda p: pgettext("host", "works"),
}

PROBLEMS: Table = {
    "ENGINE": lambda p: _("Its Docker engine: %(message)s") % p,
    "DRIVER": lambda p: _("Its GPUs: %(message)s") % {"message": p["message"] or Node.GpuStatus(p["status"]).label},
    "CLOCK": lambda p: _("Its clock is wrong: %(skew)s.") % {"skew": clock_skew(p["seconds"])},
    "DISK": _disk,
    "GPU": _gpu,
}

REFUSALS: Table = {
    "TOKEN": lambda p: _("This join token is unknown, used or expired. An administrator can make another."),
    "NAME": lambda p: _("“%(name)s” is no name for a host: small letters, digits, - and _, 40 at most.") % p,
    "NAME_TAKEN": lambda p: _(
        "There is a host %(name)s already. Choose another name, or have a token made for %(name)s."
    ) % p,
    "SQLITE": lambda p: _("Hosts join an installation on PostgreSQL; this one is on SQLite. Set DATABASE_URL."),
    "STORAGE": lambda p: _(
        "Logs lie in a folder of the portal's own host. Set STORAGES with a storage “logs” that all hosts reach."
    ),
    "ADDRESS": lambda p: _(
        "Other hosts can't reach what the portal's address of it names. Set %(setting)s on the portal."
    ) % p,
    "ROLE": lambda p: _("PostgreSQL made no role for the host; the portal's own role needs CREATEROLE: %(why)s") % p,
    "REDIS": lambda p: _("Redis lets the portal make no user for the host: %(why)s") % p,
    "INSECURE": lambda p: _("Hosts join over HTTPS alone: what they are given is secret."),
    "RUNS": _runs,
    "ALIVE": lambda p: _("%(node)s is heard of: a host that works can't be declared dead.") % p,
}  # fmt: skip
