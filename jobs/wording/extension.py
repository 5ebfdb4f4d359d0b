"""What came of asking for more time."""

from collections.abc import Mapping
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.wording import quantities as q

MOST_NAMED = 5


def extension(*, granted: bool, until: datetime, delayed: Mapping[int, float | None]) -> str:
    """Until when the job may run now, or which waiting jobs (id → seconds) stand against it and how much."""
    if granted and not delayed:
        return _("It may run until %(until)s now.") % {"until": q.clock_time(until)}
    if granted:
        text = ngettext(
            "It may run until %(until)s now, although that delays %(count)d job: %(jobs)s.",
            "It may run until %(until)s now, although that delays %(count)d jobs: %(jobs)s.",
            len(delayed),
        )
    else:
        text = ngettext(
            "Running until %(until)s would delay %(count)d job: %(jobs)s. Its time limit stays as it is.",
            "Running until %(until)s would delay %(count)d jobs: %(jobs)s. Its time limit stays as it is.",
            len(delayed),
        )
    return text % {"until": q.clock_time(until), "count": len(delayed), "jobs": _jobs(delayed)}


def _jobs(delayed: Mapping[int, float | None]) -> str:
    """The jobs that lose most, with how much."""
    worst = sorted(delayed.items(), key=lambda row: -(row[1] if row[1] is not None else float("inf")))
    named = [_("#%(job)d by %(late)s") % {"job": job, "late": _late(late)} for job, late in worst[:MOST_NAMED]]
    return ", ".join(named) + (" …" if len(worst) > MOST_NAMED else "")


def _late(seconds: float | None) -> str:
    return _("nobody knows how much") if seconds is None else q.duration(seconds)
