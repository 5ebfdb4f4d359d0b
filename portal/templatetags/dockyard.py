"""What every page says the same way: times, durations, memory, and the words that scripts show."""

from datetime import datetime, timedelta
from functools import lru_cache
from html import escape

from django import template
from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import json_script
from django.utils.safestring import SafeString, mark_safe
from django.utils.timesince import timesince
from django.utils.translation import get_language, pgettext
from django.utils.translation import gettext as _

from jobs import plain
from portal.jswords import words

register = template.Library()


@register.simple_tag
def when(at: datetime | None, style: str = "ago") -> SafeString | str:
    """A moment as `<time>`; scripts keep it fresh. Styles: ago, since (elapsed), until (left), at (absolute)."""
    if at is None:
        return "–"
    absolute = _in_full(timezone.make_naive(at), get_language())
    return mark_safe(  # noqa: S308 - times in our own words; not format_html, which costs as much as all the rest
        f'<time datetime="{at.isoformat()}" data-when="{escape(style)}" title="{escape(absolute)}">'
        f"{escape(_moment(at, style) or absolute)}</time>"
    )


@lru_cache(maxsize=8192)
def _in_full(local: datetime, _language: str) -> str:
    """Local time as text. Kept: the jobs of a list are the same whenever somebody looks."""
    return date_format(local, "DATETIME_FORMAT")


def _moment(at: datetime, style: str) -> str:
    now = timezone.now()
    if style == "since":
        return duration((now - at).total_seconds())
    if style == "until":
        return duration((at - now).total_seconds())
    if style == "ago" and now >= at > now - timedelta(days=7):
        return _("%(time)s ago") % {"time": timesince(at, now, depth=1)}
    return ""


@register.simple_tag
def span(start: datetime | None, end: datetime | None) -> str:
    """How long it took from `start` to `end`; a dash where either is not known."""
    return "–" if start is None or end is None else duration((end - start).total_seconds())


@register.filter
def visible(text: object) -> str:
    """What a person wrote, for a title or a sentence."""
    return plain.visible(str(text))


@register.filter
def named(text: object) -> SafeString:
    """What a person wrote, in its own direction, which is none of the text's around it."""
    return mark_safe(f"<bdi>{escape(plain.visible(str(text)))}</bdi>")  # noqa: S308


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds as people say them: the two largest parts; a dash for None."""
    if seconds is None:
        return "–"
    whole = max(0, int(seconds))
    units = _units(get_language())
    first = next((i for i, (_unit, size) in enumerate(units) if whole >= size), 3)
    said: list[str] = []
    for unit, size in units[first : first + 2]:
        amount, whole = divmod(whole, size)
        if amount or not said:
            said.append(f"{amount} {unit}")
    return " ".join(said)


@lru_cache(maxsize=8)
def _units(_language: str) -> tuple[tuple[str, int], ...]:
    return (
        (pgettext("unit", "d"), 86400),
        (pgettext("unit", "h"), 3600),
        (pgettext("unit", "min"), 60),
        (pgettext("unit", "s"), 1),
    )


@register.filter
def gib(mib: float | None) -> str:
    """MiB as GiB, with at most one decimal; small amounts stay MiB; a dash for None."""
    if mib is None:
        return "–"
    if mib < 1024:
        return f"{mib:.0f} MiB"
    return f"{_trim(mib / 1024)} GiB"


@register.filter
def percent(value: float | None) -> str:
    """Whole percent; a dash for None."""
    return "–" if value is None else f"{value:.0f} %"


@register.filter
def bytesize(size: float | None) -> str:
    """Bytes in the nearest binary unit; a dash for None."""
    if size is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{_trim(size)} {unit}"
        size /= 1024
    return f"{_trim(size)} TiB"


@register.filter
def cpus(millicpus: int | None) -> str:
    """Thousandths of CPUs as CPUs: 1500 is 1.5; a dash for None."""
    return "–" if millicpus is None else f"{millicpus / 1000:g}"


def _trim(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@register.simple_tag
def gpus_are_simulated() -> bool:
    """Whether this installation makes its readings up; known to templates without any context too."""
    return bool(settings.GPU_DRIVER == "simulated")


@register.simple_tag
def js_words() -> SafeString:
    """The translated words that scripts show, as JSON that no markup can leave."""
    return _words_in(get_language())


@lru_cache(maxsize=8)
def _words_in(_language: str) -> SafeString:
    return json_script(words(), "words")
