"""Who runs next and where: snapshot in, plan out. Pure: no Django, no clock, no settings.

order → place → keep → explain, put together in `plan`.
"""

from jobs.policy.plan import make_plan
from jobs.policy.view import (
    Expected,
    Gpu,
    Move,
    Node,
    Placement,
    Plan,
    Preemption,
    Reason,
    Reservation,
    Rules,
    Running,
    Share,
    Snapshot,
    Waiting,
)

__all__ = [
    "Expected",
    "Gpu",
    "Move",
    "Node",
    "Placement",
    "Plan",
    "Preemption",
    "Reason",
    "Reservation",
    "Rules",
    "Running",
    "Share",
    "Snapshot",
    "Waiting",
    "make_plan",
]
