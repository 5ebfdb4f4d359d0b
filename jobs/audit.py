"""Who changed which rule and when: rows that admins edit are kept in the audit log, without any secret."""

from auditlog.registry import auditlog

from gpus.models import GPU, Node
from jobs.models import Cluster, Membership, Mount, Quota, RegistryLogin, Team
from portal.models import User

# What agents and the scheduler write every few seconds is no decision of anybody's.
NODE_WISHES = ["reserved_millicpus", "reserved_memory_mib", "labels", "cordoned", "cordon_reason"]
GPU_WISHES = ["hidden", "quarantine_reason", "slots"]
CLUSTER_WISHES = ["paused", "pause_reason", "image_patterns", "egress", "egress_networks"]


def register() -> None:
    """Begin to keep the log. Once, when Django is ready."""
    auditlog.register(User, exclude_fields=["password", "last_login", "language"])
    auditlog.register(RegistryLogin, exclude_fields=["password_encrypted"])
    auditlog.register(Node, include_fields=NODE_WISHES)
    auditlog.register(GPU, include_fields=GPU_WISHES)
    auditlog.register(Cluster, include_fields=CLUSTER_WISHES)
    for model in (Team, Membership, Quota, Mount):
        auditlog.register(model)
