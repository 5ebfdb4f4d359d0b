"""What becomes of people's jobs, tokens and open pages when accounts and memberships change."""

from typing import Any

from django.contrib.auth.signals import user_logged_out
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from jobs import control
from jobs.models import Job, Membership
from jobs.states import JobState
from portal import live
from portal.models import User


@receiver(post_save, sender=User)
def user_saved(instance: User, created: bool, update_fields: Any = None, **_signal: Any) -> None:
    """Rights may have changed: open pages look again. A deactivated person's tokens go, and what waits is held."""
    if created or (update_fields and set(update_fields) <= {"last_login", "language"}):
        return
    if not instance.is_active:
        deactivated(instance)
    look_again(instance.pk)


def deactivated(user: User) -> None:
    """Revoke the tokens and hold the waiting jobs, for an admin to release. Running ones and all history stay."""
    user.api_tokens.all().delete()
    for job in Job.objects.filter(owner=user, state__in=[JobState.QUEUED, JobState.HELD], held_by_admin=False):
        control.hold(job, None)


@receiver([post_save, post_delete], sender=Membership)
def membership_changed(instance: Membership, **_signal: Any) -> None:
    """Who left a team no longer sees its jobs: open pages look again."""
    look_again(instance.user_id)


@receiver(user_logged_out)
def logged_out(user: User | None, **_signal: Any) -> None:
    """Close the sockets that this person's session had open."""
    if user is not None:
        look_again(user.pk)


def look_again(user_id: int) -> None:
    """Have every open socket of this person check its rights anew, once the change has committed."""
    transaction.on_commit(lambda: live.publish(live.user_topic(user_id), {"user": user_id}), robust=True)
