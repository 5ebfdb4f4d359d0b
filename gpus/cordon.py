"""Close a host to new jobs, and open it: by an admin, in the audit log and in the host's own journal."""

from typing import Any

from gpus.models import HostEvent, Node


def cordon(node: Node, actor: Any, reason: str = "") -> bool:
    """No new job starts there; running ones go on. False when nothing changed."""
    return _set(node, actor, cordoned=True, reason=reason[:200])


def uncordon(node: Node, actor: Any) -> bool:
    return _set(node, actor, cordoned=False, reason="")


def note(node: Node, actor: Any) -> None:
    """Write into the journal that the host is closed, or open, from now on."""
    params = {"why": node.cordon_reason} if node.cordoned and node.cordon_reason else {}
    HostEvent.objects.create(node=node, kind="CORDONED" if node.cordoned else "UNCORDONED", actor=actor, params=params)


def _set(node: Node, actor: Any, *, cordoned: bool, reason: str) -> bool:
    if (node.cordoned, node.cordon_reason) == (cordoned, reason):
        return False
    node.cordoned, node.cordon_reason = cordoned, reason
    node.save(update_fields=["cordoned", "cordon_reason"])  # saved and not updated: the audit log hears of it
    note(node, actor)
    return True
