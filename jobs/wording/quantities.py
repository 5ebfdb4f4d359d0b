"""Numbers as people say them, in the reader's language."""

from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import get_language, gettext, ngettext

from jobs.units import format_cpus, format_memory


def gpus(count: float) -> str:
    """A number of GPUs: "1 GPU", "4 GPUs", "0.46 GPUs"."""
    if count != int(count):
        return gettext("%(number)s GPUs") % {"number": f"{count:.3f}".rstrip("0")}
    return ngettext("%(count)d GPU", "%(count)d GPUs", int(count)) % {"count": count}


def gpu_share(milli: int) -> str:
    """A share of one GPU, in thousandths: "0.46 of a GPU"."""
    return gettext("%(number)s of a GPU") % {"number": f"{milli / 1000:.3f}".rstrip("0").rstrip(".")}


def cpus(millicpus: float) -> str:
    """Thousandths as "1 CPU", "1.5 CPUs"."""
    number = format_cpus(millicpus)
    return ngettext("%(number)s CPU", "%(number)s CPUs", 1 if number == "1" else 2) % {"number": number}


def memory(mib: float) -> str:
    """MiB as "512 MiB", "24 GiB"."""
    return format_memory(mib)


def duration(seconds: float) -> str:
    """Seconds in the two largest units: "1 d 4 h", "5 min 3 s", "0 s"."""
    rest, parts = max(int(seconds), 0), list[tuple[int, str]]()
    for size, words in _units():
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append((count, words))
    return " ".join(words % count for count, words in parts[:2] if count) or gettext("%d s") % 0


def _units() -> tuple[tuple[int, str], ...]:
    return (86400, gettext("%d d")), (3600, gettext("%d h")), (60, gettext("%d min")), (1, gettext("%d s"))


def gpu_hours(gpu_seconds: float) -> str:
    """GPU-seconds as "0.5 GPU-hours"; less than an hour in two digits that count, as "0.0047 GPU-hours"."""
    hours = gpu_seconds / 3600
    if hours >= 100 or hours == int(hours):
        number = f"{hours:.0f}"
    else:
        number = f"{hours:.1f}" if hours >= 1 else f"{max(hours, 0.0001):.2g}"
    return ngettext("%(number)s GPU-hour", "%(number)s GPU-hours", 1 if number == "1" else 2) % {"number": number}


def place(position: int, total: int) -> str:
    """A place in a queue: "3rd of 7"."""
    return gettext("%(ordinal)s of %(total)d") % {"ordinal": _ordinal(position), "total": total}


def _ordinal(number: int) -> str:
    if (get_language() or "en").startswith("zh"):
        return f"第 {number} 位"
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def clock_time(moment: datetime | str | None) -> str:
    """A time (or ISO text of one) in the active zone: "14:05" today, else "2026-11-30 14:05"; "?" for none."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if moment is None:
        return "?"
    try:
        local = timezone.localtime(moment)
    except OverflowError:  # the first or the last hours of the calendar
        local = moment
    return f"{local:%H:%M}" if local.date() == timezone.localdate() else f"{local:%Y-%m-%d %H:%M}"


def names(value: Any) -> str:
    """A list of names as text; a lone name or number as it is."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(str(item) for item in value)
    return str(value)
