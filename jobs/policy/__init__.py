"""Who runs next and where: snapshot in, plan out. Pure: no Django, no clock, no settings.

order → place → keep → explain, put together in `plan`.
"""

from jobs.policy.plan import make_plan
from jobs.policy.view import Gpu, Node, Placement, Plan, Reason, Reservation, Rules, Snapshot, Waiting

__all__ = ["Gpu", "Node", "Placement", "Plan", "Reason", "Reservation", "Rules", "Snapshot", "Waiting", "make_plan"]
