"""Who may see and do what: the one authorisation of routes, API calls and sockets."""

from collections.abc import Callable
from typing import Any

from django.db.models import Q, QuerySet
from django.http import Http404
from django.utils.translation import gettext as _

from jobs.models import Job, Membership


def visible_jobs(user: Any) -> QuerySet[Job]:
    """The jobs whose name, image, command, log and files this user may see: own, the team's, staff all."""
    if not user.is_authenticated or not user.is_active:
        return Job.objects.none()
    if user.is_staff:
        return Job.objects.all()
    teams = Membership.objects.filter(user=user).values("team")
    return Job.objects.filter(Q(owner=user) | Q(team__in=teams))


def visible_parts(user: Any) -> list[QuerySet[Job]]:
    """`visible_jobs` as parts that overlap: one's own jobs, and those of each of one's teams; staff have one of all.

    A list of the newest is the newest of each part, for which there is an index; of all at once there is none.
    """
    if not user.is_authenticated or not user.is_active or user.is_staff:
        return [visible_jobs(user)]
    teams = Membership.objects.filter(user=user).order_by("pk").values_list("team_id", flat=True)
    return [Job.objects.filter(owner=user), *(Job.objects.filter(team=team) for team in teams)]


def sees(user: Any) -> Callable[[int, int], bool]:
    """`visible_jobs` for those who have many rows in hand: whether the user may see an owner's job in a team."""
    if not user.is_active or user.is_staff:
        return lambda owner, team: user.is_active
    teams, me = set(Membership.objects.filter(user=user).values_list("team_id", flat=True)), user.pk
    return lambda owner, team: owner == me or team in teams


def get_job(user: Any, pk: int) -> Job:
    """The job, for one who may see it; Http404 for strangers, as if it did not exist."""
    job = visible_jobs(user).select_related("owner", "team").filter(pk=pk).first()
    if job is None:
        raise Http404
    return job


def can_control(user: Any, job: Job) -> bool:
    """Whether the user may stop, hold or release the job: its owner, a lead of its team, staff."""
    if not user.is_active:
        return False
    if user.is_staff or job.owner_id == user.pk:
        return True
    return Membership.objects.filter(team=job.team_id, user=user, role=Membership.Role.LEAD).exists()


def can_pin(user: Any, job: Job | None = None) -> bool:
    """Whether the user may put jobs before all others: staff."""
    return bool(user.is_active and user.is_staff)


def can_reorder(user: Any, job: Job) -> bool:
    """Whether the user may exchange the job's place with another of its owner's: the owner and staff."""
    return bool(user.is_active and (user.is_staff or job.owner_id == user.pk))


def denial(may: Callable[[Any, Job], bool]) -> str:
    """Who may, for one who may not: `may` is the check that failed."""
    if may is can_pin:
        return _("Only an administrator may do this.")
    if may is can_reorder:
        return _("Only its owner or an administrator may do this.")
    return _("Only its owner, a lead of its team or an administrator may do this.")
