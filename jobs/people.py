"""What becomes of people's jobs, tokens and open pages when accounts and memberships change."""

from typing import Any

from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from jobs import control
from jobs.models import Job, JobEvent, Membership
from jobs.states import LIVE, JobState
from portal import live
from portal.models import ApiToken, User

DEACTIVATED = "DEACTIVATED"  # why a job was held, or released: the owner's account


@receiver(post_save, sender=User)
def user_saved(instance: User, created: bool, update_fields: Any = None, **_signal: Any) -> None:
    """Rights may have changed: open pages look again. A deactivated person's tokens go, and what waits is held.

    Of somebody active, what a deactivation held is released.
    """
    if created or (update_fields and set(update_fields) <= {"last_login", "language"}):
        return
    if not instance.is_active:
        deactivated(instance)
    else:
        reactivated(instance)
    look_again(instance.pk)


def deactivated(user: User) -> None:
    """Revoke the tokens and hold the waiting jobs until the account is active again. Running ones and history stay."""
    user.api_tokens.all().delete()
    for job in Job.objects.filter(owner=user, state__in=[JobState.QUEUED, JobState.HELD], held_by_admin=False):
        control.hold(job, None, why=DEACTIVATED)


def reactivated(user: User) -> None:
    """Release what the deactivation held, and nothing that an admin held for another reason."""
    for job in held_with_account(user):
        control.release(job, None, why=DEACTIVATED)


def held_with_account(user: User) -> list[Job]:
    """The jobs that wait because this person was deactivated: their last hold by an admin was for that."""
    held = Job.objects.filter(owner=user, state=JobState.HELD, held_by_admin=True).order_by("pk")
    events = JobEvent.objects.filter(job__in=held, kind="HELD", params__by="admin").order_by("pk")
    last = {event.job_id: event.params.get("why") for event in events}
    return [job for job in held if last.get(job.pk) == DEACTIVATED]


def running(user: User) -> list[Job]:
    """The jobs that hold something of a host just now."""
    return list(Job.objects.filter(owner=user, state__in=LIVE).order_by("pk"))


@receiver([post_save, post_delete], sender=Membership)
def membership_changed(instance: Membership, **_signal: Any) -> None:
    """Who left a team no longer sees its jobs: open pages look again."""
    look_again(instance.user_id)


@receiver(post_delete, sender=ApiToken)
def token_revoked(instance: ApiToken, **_signal: Any) -> None:
    """Close the sockets that were opened with it."""
    look_again(instance.user_id)


def look_again(user_id: int) -> None:
    """Have every open socket of this person check its rights anew, once the change has committed."""
    transaction.on_commit(lambda: live.publish(live.user_topic(user_id), {"user": user_id}), robust=True)
