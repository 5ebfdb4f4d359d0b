"""The journal of hosts: what befell each, written by whoever noticed."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from gpus.models import HostEvent, Node

_OF_LIFE = ("SILENT", "HEARD", "JOINED", "STARTED")


def note(node: Node, kind: str, *, actor: Any = None, **params: Any) -> HostEvent:
    return HostEvent.objects.create(node=node, kind=kind, actor=actor, params=params)


def watch(now: datetime) -> None:
    """Note each host that has fallen silent, and each that is heard of again. By the scheduler, the one that waits."""
    last = HostEvent.objects.filter(node=OuterRef("pk"), kind__in=_OF_LIFE).order_by("-id").values("kind")[:1]
    for node in _known(now).annotate(last=Subquery(last)):
        alive = node.is_alive(now)
        if not alive and node.last != "SILENT":
            assert node.last_seen is not None
            note(node, "SILENT", since=node.last_seen.isoformat())
        elif alive and node.last == "SILENT":
            note(node, "HEARD")


def _known(now: datetime) -> QuerySet[Node]:
    """Hosts that have not left, and that were ever heard of."""
    late = now - timedelta(seconds=settings.NODE_SILENT_AFTER)
    return Node.objects.filter(left_at=None, last_seen__isnull=False, first_seen__lte=late)
