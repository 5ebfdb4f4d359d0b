"""That a job's GPUs are borrowed from other teams."""

from django.utils.translation import gettext as _

from jobs.quotas import WHOLE
from jobs.wording import quantities as q


def loan(*, team: str, guaranteed: int, milli: int, protected: float, would: bool = False) -> str:
    """Whose guarantee the GPUs go beyond, and when they can be taken back. `would`: if the job were submitted."""
    text = _(
        "Its GPUs are borrowed: team %(team)s is guaranteed %(guaranteed)s, and this job (%(asked)s) goes beyond that."
    )
    if would:
        text = _(
            "Its GPUs would be borrowed: team %(team)s is guaranteed %(guaranteed)s, "
            "and this job (%(asked)s) would go beyond that."
        )
    asked = q.gpus(milli // WHOLE) if milli % WHOLE == 0 else q.gpu_share(milli)
    said = text % {"team": team, "guaranteed": q.gpus(guaranteed) if guaranteed else _("no GPUs"), "asked": asked}
    if not protected:
        return f"{said} {_('They can be taken back as soon as their owners need them.')}"
    back = _("They can be taken back when their owners need them, once it has run for %(time)s.")
    return f"{said} {back % {'time': q.duration(protected)}}"
