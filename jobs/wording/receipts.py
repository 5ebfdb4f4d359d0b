"""A job's receipt in words: line by line, and the request that would have done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from jobs.receipt import Asked, Used, has_whole_load
from jobs.units import format_cpus
from jobs.wording import quantities as q


@dataclass(frozen=True, kw_only=True)
class Line:
    """One resource. `percent`: how much of what was asked was used at most or on average; None: not known."""

    name: str
    asked: str
    used: str
    percent: float | None = None


def lines(asked: Asked, used: Used) -> list[Line]:
    """GPU, GPU memory, CPU, memory and time, as far as they were asked for."""
    found = [_gpu(asked, used), _gpu_memory(asked, used)] if asked.gpus else []
    return [*found, _cpu(asked, used), _memory(asked, used), _time(asked, used)]


def facts(asked: Asked, used: Used) -> list[tuple[str, str]]:
    """What it cost and moved: name and value, only of what is known."""
    found = []
    if asked.gpus:
        found.append((_("GPU time held"), q.gpu_hours(used.held_seconds)))
        if used.gpu_known_seconds:
            found.append((_("GPU time idle"), q.gpu_hours(used.gpu_idle_seconds)))
        if used.kwh is not None:
            found.append((_("Energy of the GPUs"), energy(used.kwh)))
        if used.throttled_seconds:
            found.append((_("Throttled"), q.duration(used.throttled_seconds)))
    if used.seconds:
        found.append((_("Disk"), _both(_("%(one)s read, %(other)s written"), used.read_mib, used.written_mib)))
        found.append((_("Network"), _both(_("%(one)s received, %(other)s sent"), used.received_mib, used.sent_mib)))
    return found


def energy(kwh: float) -> str:
    """Kilowatt-hours as "0.58 kWh", small amounts as "12 Wh"."""
    if kwh < 0.1:
        return _("%(number)s Wh") % {"number": f"{1000 * kwh:.0f}"}
    return _("%(number)s kWh") % {"number": f"{kwh:.2f}" if kwh < 10 else f"{kwh:.0f}"}


def smaller(changes: Mapping[str, str]) -> str:
    """The request that would have done, as a sentence; `changes` as of `receipt.would_have_done`."""
    said: dict[str, Callable[[str], str]] = {
        "gpus": lambda text: q.gpus(int(text)), "cpus": lambda text: q.cpus(1000 * float(text)),
        "memory": lambda text: text, "limit": lambda text: _("%(time)s of time") % {"time": text},
    }  # fmt: skip
    parts = [say(changes[name]) for name, say in said.items() if name in changes]
    return _("Less would have done: %(what)s.") % {"what": ", ".join(parts)}


def busy(used: Used) -> str:
    """How busy its GPUs were, for lists; empty where that is not known."""
    if used.gpu_percent is None:
        return ""
    return _("%(percent)d %% busy") % {"percent": round(used.gpu_percent)}


def _gpu(asked: Asked, used: Used) -> Line:
    name, given = _("GPU"), q.gpu_share(asked.gpu_milli) if asked.is_share else q.gpus(asked.gpus)
    if used.gpu_percent is None:
        return Line(name=name, asked=given, used=_no_load(asked, used))
    said = _("%(percent)d %% busy on average") % {"percent": round(used.gpu_percent)}
    if not has_whole_load(asked, used):
        words = {"said": said, "time": q.duration(used.gpu_known_seconds / asked.gpus), "all": q.duration(used.seconds)}
        return Line(
            name=name, asked=given, used=_("%(said)s in %(time)s of %(all)s; of the rest no load is known") % words
        )
    if asked.gpus > 1 and used.gpus_busy_max is not None:
        said = _("%(said)s, %(count)d at work at most") % {"said": said, "count": used.gpus_busy_max}
    return Line(name=name, asked=given, used=said, percent=used.gpu_percent)


def _no_load(asked: Asked, used: Used) -> str:
    """Why nobody knows how busy its GPUs were."""
    if used.seconds and asked.is_share:
        return _("not known: the load of a shared GPU can't be told apart")
    if used.seconds and asked.gpu_profile:
        return _("not known: the driver tells no load of MIG instances")
    return _unknown(used)


def _gpu_memory(asked: Asked, used: Used) -> Line:
    text = _("%(size)s, shared") if asked.is_share else _("%(size)s each")
    given = "–" if asked.gpu_mib is None else text % {"size": q.memory(asked.gpu_mib)}
    return _peak(_("GPU memory"), given, used.gpu_memory_max_mib, asked.gpu_mib, used)


def _memory(asked: Asked, used: Used) -> Line:
    return _peak(_("Memory"), q.memory(asked.memory_mib), used.memory_max_mib, asked.memory_mib, used)


def _peak(name: str, given: str, most: float | None, limit: int | None, used: Used) -> Line:
    if most is None:
        return Line(name=name, asked=given, used=_unknown(used))
    said = _("%(size)s at most") % {"size": q.memory(most)}
    return Line(name=name, asked=given, used=said, percent=100 * most / limit if limit else None)


def _cpu(asked: Asked, used: Used) -> Line:
    name, given = pgettext("receipt", "CPU"), q.cpus(asked.millicpus)
    if used.cpus is None or used.cpu_percent_max is None:
        return Line(name=name, asked=given, used=_unknown(used))
    words = {"mean": _cores(100 * used.cpus), "most": _cores(used.cpu_percent_max)}
    said = _("%(mean)s on average, %(most)s at most") % words
    return Line(name=name, asked=given, used=said, percent=100_000 * used.cpus / asked.millicpus)


def _cores(percent: float) -> str:
    """To a tenth of a core."""
    return format_cpus(round(percent / 10) * 100)


def _time(asked: Asked, used: Used) -> Line:
    given = _("no limit") if asked.limit_seconds is None else q.duration(asked.limit_seconds)
    percent = 100 * used.ran_seconds / asked.limit_seconds if asked.limit_seconds else None
    return Line(name=_("Time"), asked=given, used=q.duration(used.ran_seconds), percent=percent)


def _unknown(used: Used) -> str:
    """Nothing of the run was measured, or the hardware does not tell this."""
    return _("not measured") if not used.seconds else _("not reported")


def _both(text: str, one: float, other: float) -> str:
    return text % {"one": q.memory(one), "other": q.memory(other)}
