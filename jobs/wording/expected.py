"""When a job should start, and how far such words can be trusted."""

from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.wording.quantities import clock_time, duration

NEAR = timedelta(minutes=2)
FEWEST = 20  # estimates before their hit rate means anything


def expected_start(earliest: datetime | None, latest: datetime | None) -> str:
    """A range as "about 14:10–14:40", or "before about 14:40" where it may be at any moment; "" for none."""
    if earliest is None or latest is None:
        return ""
    if latest - earliest <= NEAR:
        return _("about %(at)s") % {"at": clock_time(latest)}
    if earliest - timezone.now() <= NEAR / 2:
        return _("before about %(at)s") % {"at": clock_time(latest)}
    low, high = clock_time(earliest), clock_time(latest)
    return _("about %(from)s–%(to)s") % {"from": low, "to": high}


def ahead(position: int) -> str:
    """How many are before the one at this place, from 1; 0 for one that is to start later."""
    if not position:
        return _("not in line before its time")
    if position == 1:
        return _("first in line")
    return ngettext("%(n)d job ahead", "%(n)d jobs ahead", position - 1) % {"n": position - 1}


def trust(estimates: int, percent: int | None, mean_width: float | None) -> str:
    """How often estimates were right lately, and how wide they were; "" before there are enough to tell."""
    if estimates < FEWEST or percent is None or mean_width is None:
        return ""
    words = _("Such estimates were right %(percent)d%% of the time; on average %(width)s wide.")
    return words % {"percent": percent, "width": duration(mean_width)}
