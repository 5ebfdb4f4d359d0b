"""The tables, by what they are about: rules that admins set, the work itself, and what is kept about it."""

from jobs.models.records import Estimate, HostDay, LogSegment, RunMetrics, UsageDay, WhatIf
from jobs.models.rules import Cluster, Membership, Mount, Priority, Quota, RegistryLogin, Team
from jobs.models.work import Allocation, AllocationSlot, CommandKind, Job, JobEvent, Run

__all__ = [
    "Allocation",
    "AllocationSlot",
    "Cluster",
    "CommandKind",
    "Estimate",
    "HostDay",
    "Job",
    "JobEvent",
    "LogSegment",
    "Membership",
    "Mount",
    "Priority",
    "Quota",
    "RegistryLogin",
    "Run",
    "RunMetrics",
    "Team",
    "UsageDay",
    "WhatIf",
]
