"""What a standing in the fair-share tree does to the jobs of a team or a person, in one sentence."""

from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.policy.fairtree import Standing
from jobs.policy.weights import Weights


def team_sentence(own: Standing, all_teams: Iterable[Standing]) -> str:
    """What it does to the team's jobs, against those of the other teams."""
    before, behind = _before_and_behind(own, all_teams)
    if not own.shares:
        return _("It has no share, so its jobs go after those of every team that has one.")
    if not before and not behind:
        return _("No other team stands before or behind it: among equals the older job goes first.")
    if not before:
        return _("It has had the least of its part, so its jobs go before those of every other team.")
    if not behind:
        return _("It has had the most of its part, so its jobs go after those of every other team.")
    text = ngettext(
        "Its jobs go after those of %(before)d team and before those of %(behind)d.",
        "Its jobs go after those of %(before)d teams and before those of %(behind)d.",
        before,
    )
    return text % {"before": before, "behind": behind}


def member_sentence(own: Standing, all_members: Iterable[Standing]) -> str:
    """What it does to a person's jobs, against those of the others in the team."""
    before, behind = _before_and_behind(own, all_members)
    if not own.shares:
        return _("Without a share in this team, their jobs go after those of all its members.")
    if not before and not behind:
        return _("Nobody in the team stands before or behind: among equals the older job goes first.")
    if not before:
        return _("Has had the least of their part, so their jobs go first in the team.")
    if not behind:
        return _("Has had the most of their part, so their jobs go last in the team.")
    text = ngettext(
        "Their jobs go after those of %(before)d member and before those of %(behind)d.",
        "Their jobs go after those of %(before)d members and before those of %(behind)d.",
        before,
    )
    return text % {"before": before, "behind": behind}


def of_the_use(found: Standing) -> str:
    """Its part of all use beside what it is due, in full."""
    return _("%(part)s of the use, %(due)s due") % _parts(found)


def had_and_due(found: Standing) -> str:
    """The same for a line of figures."""
    return _("%(part)s had, %(due)s due") % _parts(found)


def _parts(found: Standing) -> dict[str, str]:
    return {"part": f"{100 * found.part:.0f} %", "due": f"{100 * found.due:.0f} %"}


def count(found: Standing) -> str:
    return ngettext("%(n)s share", "%(n)s shares", found.shares) % {"n": found.shares}


def beyond_soft_mark(hours: int, days: int) -> str:
    """That more GPU-hours were used than a soft mark."""
    text = _("More than %(hours)d GPU-hours in %(days)d days: jobs start after all that are within their mark.")
    return text % {"hours": hours, "days": days}


def weights(found: Weights) -> str:
    """What counts otherwise than an hour of a GPU as one; "" where nothing does."""
    said = [
        _("an hour of %(model)s %(n)s") % {"model": model, "n": f"{n:g}"} for model, n in sorted(found.models.items())
    ]
    said += [_("an hour of a CPU %(n)s") % {"n": f"{found.cpu:g}"}] if found.cpu else []
    said += [_("an hour of a GiB of memory %(n)s") % {"n": f"{found.memory:g}"}] if found.memory else []
    if not said:
        return ""
    text = _("An hour of a GPU counts as one, but %(weights)s.") % {"weights": ", ".join(said)}
    if not (found.cpu or found.memory):
        return text
    return f"{text} {_('Of GPUs, CPUs and memory, what counts most is what a job is charged.')}"


def _before_and_behind(own: Standing, others: Iterable[Standing]) -> tuple[int, int]:
    ranks = [other.rank for other in others]
    return sum(rank < own.rank for rank in ranks), sum(rank > own.rank for rank in ranks)
