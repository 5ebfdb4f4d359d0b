"""A host that was given up, and came back: closed to new jobs until nothing of what was given up is left on it."""

from django.conf import settings

from gpus.models import Node
from jobs import containers, hostevents
from jobs.models import Run
from jobs.queues import wake_scheduler
from jobs.states import RunState


def come_back() -> bool:
    """Let this host take jobs again if it was given up and nothing of what was given up is left on its engine.

    False while something is: reconciliation stops it, keeps its log and removes it. Raises EngineUnavailable.
    """
    node = Node.objects.filter(name=settings.NODE_NAME, declared_dead_at__isnull=False).first()
    if node is None:
        return True
    there = [container.run_id for container in containers.ours() if container.run_id is not None]
    if Run.objects.filter(pk__in=there, state=RunState.ENDED).exists():
        return False
    if Node.objects.filter(pk=node.pk, declared_dead_at=node.declared_dead_at).update(declared_dead_at=None):
        hostevents.note(node, "CAME_BACK")
        wake_scheduler()
    return True
