"""The whole round, also of a GPU host: by `manage.py doctor`, and by each node of itself."""

from collections.abc import Sequence

from portal.doctor import host
from portal.doctor.finding import ROLES, Finding, Role
from portal.doctor.rounds import Probe, findings, of_portal

HOST: tuple[Probe, ...] = (host.engine, host.daemon_json, host.limits, host.injection, host.driver, host.network)


def examine(roles: Sequence[Role] = ROLES, *, sampled: bool = False) -> list[Finding]:
    """Every finding of these roles, each once.

    `sampled`: by the node itself, whose sampler tells of NVML, and whose reconciling of unknown containers.
    """
    role: Role = "node" if "node" in roles else roles[0]  # a node stands on all that the others stand on
    found = of_portal(role)
    if role == "node":
        own = (host.nvml_as_sampled,) if sampled else (host.nvml, host.strays)
        found += findings((*HOST, *own), role)
    return found
