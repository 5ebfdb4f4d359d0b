"""What a host may do with Redis and PostgreSQL, as data: its own queues, runs and readings, and what a start needs.

A host that is broken into can lie about its own jobs. It reads no password, session or API token, no job that never
came to it, and starts nothing elsewhere.
"""

import hashlib

# Categories first; then what the categories of reading and writing bring along and no host needs.
_COMMANDS = ("+@read", "+@write", "+@pubsub", "+@transaction", "+@connection", "-@dangerous", "-@scripting", "+info")
_REGISTRIES = ("wip", "finished", "failed", "deferred", "scheduled", "canceled", "clean_registries", "workers", "queue")

EVERYTHING = ("*",)

# Tables by model or name, with the columns that a host may read. Whatever is not named is closed to hosts.
READS: dict[str, tuple[str, ...]] = {
    "portal.User": (
        "id", "username", "first_name", "last_name", "email", "is_active", "is_staff", "is_superuser", "last_login",
        "date_joined", "uid", "gid", "may_run_as_root", "may_run_unlimited", "language",
    ),
    "gpus.Node": EVERYTHING,
    "gpus.HostAccess": ("node_id", "database_role"),
    "gpus.HostEvent": ("id",),
    "gpus.GPU": EVERYTHING,
    "gpus.GPUMinute": EVERYTHING,
    "gpus.ContainerMinute": EVERYTHING,
    "gpus.RunUse": EVERYTHING,
    "jobs.Cluster": EVERYTHING,
    "jobs.Team": EVERYTHING,
    "jobs.Mount": EVERYTHING,
    "jobs.Mount.teams": EVERYTHING,
    "jobs.RegistryLogin": EVERYTHING,
    "jobs.Job": EVERYTHING,
    "jobs.Job.mounts": EVERYTHING,
    "jobs.Run": EVERYTHING,
    "jobs.RunMetrics": EVERYTHING,
    "jobs.Allocation": EVERYTHING,
    "jobs.AllocationSlot": EVERYTHING,
    "jobs.JobEvent": EVERYTHING,
    "jobs.LogSegment": EVERYTHING,
    "auditlog.LogEntry": ("id",),
    "contenttypes.ContentType": EVERYTHING,
    "django_migrations": EVERYTHING,  # a table: whether the host's program is of the database's version
}  # fmt: skip
INSERTS = (
    "gpus.GPU", "gpus.HostEvent", "gpus.GPUMinute", "gpus.ContainerMinute", "gpus.RunUse", "jobs.RunMetrics",
    "jobs.JobEvent", "jobs.LogSegment", "auditlog.LogEntry",
)  # fmt: skip
DELETES = ("jobs.LogSegment",)
# What an admin wishes of a host, and what a person asked for, is not the host's to change.
UPDATES: dict[str, tuple[str, ...]] = {
    "gpus.Node": (
        "hostname", "engine_id", "engine_version", "engine_error", "driver_version", "gpu_status", "gpu_message",
        "agent_version", "millicpus", "memory_mib", "last_seen", "facts", "declared_dead_at",
    ),
    "gpus.GPU": (
        "node_id", "index", "pci_bus_id", "model", "memory_mib", "profile", "numa", "island", "quarantine_reason",
        "health", "health_message", "sampled_at", "outsiders", "busy_outside_since", "clean_samples",
    ),
    "gpus.GPUMinute": EVERYTHING,
    "gpus.ContainerMinute": EVERYTHING,
    "gpus.RunUse": EVERYTHING,
    "jobs.Job": ("state", "started_at", "ended_at", "end_reason", "exit_code", "requeues", "wait_reasons"),
    "jobs.Run": (
        "state", "starting_at", "started_at", "stopping_at", "signalled_at", "ended_at", "deadline", "progress",
        "output_progress", "engine_id", "container_id", "uid", "gid", "granted", "facts", "warnings", "wish",
        "wish_by_id", "wish_at", "end_reason", "exit_code", "oom_killed", "engine_message", "log_generation",
        "log_bytes", "log_complete", "log_dropped_bytes", "log_holes",
    ),
    "jobs.RunMetrics": EVERYTHING,
    "jobs.Allocation": ("released_at",),
    "jobs.AllocationSlot": ("released_at",),
    "jobs.LogSegment": EVERYTHING,
}  # fmt: skip

_ME = "(SELECT a.node_id FROM {gpus.HostAccess} a WHERE a.database_role = current_user)"
_OWN_RUN = f"EXISTS (SELECT FROM {{jobs.Run}} r WHERE r.id = run_id AND r.node_id = {_ME})"
_OWN_JOB = f"EXISTS (SELECT FROM {{jobs.Run}} r WHERE r.job_id = {{jobs.Job}}.id AND r.node_id = {_ME})"
_OF_OWN_JOB = f"EXISTS (SELECT FROM {{jobs.Run}} r WHERE r.job_id = {{jobs.JobEvent}}.job_id AND r.node_id = {_ME})"
_OWN_SLOT = f"EXISTS (SELECT FROM {{jobs.Allocation}} l WHERE l.id = allocation_id AND l.node_id = {_ME})"
_OF_OWN_RUN = f"EXISTS (SELECT FROM {{jobs.Run}} r WHERE r.id = run AND r.node_id = {_ME})"
_OF_OWN_GPU = f"EXISTS (SELECT FROM {{gpus.GPU}} g WHERE g.id = gpu_id AND g.node_id = {_ME})"
_OWN = f"node_id = {_ME}"
# By model and command, which rows; with no line here: all.
ROWS: dict[str, dict[str, str]] = {
    "gpus.Node": {"SELECT": "true", "UPDATE": f"id = {_ME}"},
    "gpus.GPU": {"SELECT": "true", "INSERT": _OWN, "UPDATE": _OWN},
    "gpus.HostEvent": {"SELECT": _OWN, "INSERT": _OWN},
    "gpus.GPUMinute": {"SELECT": "true", "INSERT": _OF_OWN_GPU, "UPDATE": _OF_OWN_GPU},
    "gpus.ContainerMinute": {"SELECT": "true", "INSERT": _OF_OWN_RUN, "UPDATE": _OF_OWN_RUN},
    "gpus.RunUse": {"SELECT": "true", "INSERT": _OF_OWN_RUN, "UPDATE": _OF_OWN_RUN},
    "jobs.Job": {"SELECT": _OWN_JOB, "UPDATE": _OWN_JOB},
    "jobs.Run": {"SELECT": "true", "UPDATE": _OWN},
    "jobs.Allocation": {"SELECT": "true", "UPDATE": _OWN},
    "jobs.AllocationSlot": {"SELECT": "true", "UPDATE": _OWN_SLOT},
    "jobs.JobEvent": {"SELECT": _OF_OWN_JOB, "INSERT": _OF_OWN_JOB},
    "jobs.LogSegment": {"SELECT": _OWN_RUN, "INSERT": _OWN_RUN, "UPDATE": _OWN_RUN, "DELETE": _OWN_RUN},
    "jobs.RunMetrics": {"SELECT": _OWN_RUN, "INSERT": _OWN_RUN, "UPDATE": _OWN_RUN},
}
# Rows of others that an UPDATE may turn into own ones: a GPU comes with the host that reports it.
TAKES = ("gpus.GPU",)


def redis_user(installation: str, node: str) -> str:
    """The name of the Redis user of a host."""
    return f"dockyard.{installation}.node.{node}"


def mark(node: str) -> str:
    """What the ids of a host's RQ jobs begin with: its name can't, as the names of two could begin alike."""
    return hashlib.sha256(node.encode()).hexdigest()[:12]


def redis_rules(installation: str, node: str) -> list[str]:
    """The rules of ACL SETUSER for a host, but for its password."""
    ours = f"dockyard.{installation}"
    own = [f"~{key}" for queue in (f"node.{node}", f"node.{node}.stop") for key in _keys_of(queue)]
    # RQ names the jobs that one waits for with two colons.
    own += [f"~rq:{kind}:{mark(node)}-*" for kind in ("job", "job:", "execution", "executions", "results")]
    own += [f"~rq:worker:{worker_prefix(node)}*", f"~{ours}.gpus.{node}", f"~{ours}.report.{node}"]
    own += [f"~{ours}.{kind}.*" for kind in ("gpu", "run", "log")] + [f"~{ours}.images"]
    # A wake-up of the scheduler, and the sets in which RQ counts its workers and queues.
    shared = [f"~{ours}.pass", f"~{ours}.pass.urgent", "~rq:queue:scheduler", "~rq:job:schedule-*", "~rq:job:mail-*"]
    shared += ["~rq:workers", "~rq:queues", "%R~rq:suspended", "%R~rq:groups"]
    channels = [f"&{ours}.live.*", f"&rq:pubsub:{worker_prefix(node)}*"]
    return ["reset", "on", *own, *shared, *channels, *_COMMANDS]


def worker_prefix(node: str) -> str:
    """What the names of a host's RQ workers begin with. No name of a node has a dot."""
    return f"{node}."


def _keys_of(queue: str) -> list[str]:
    taken = f"rq:queue:{queue}:intermediate"  # with a key for each job whose worker died while it took it
    return [*(f"rq:{kind}:{queue}" for kind in _REGISTRIES), taken, f"{taken}:first_seen:*"]


def database_role(database: str, node: str) -> str:
    """The name of the PostgreSQL role of a host; roles are shared by all databases of a server."""
    name = f"{database}.node.{node}"
    return name if len(name) <= 63 else f"{name[:50]}.{mark(name)}"


def group_role(database: str) -> str:
    """The role that has the rights, of which each host's is a member."""
    return f"{database[:55]}.nodes"
