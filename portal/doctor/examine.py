"""The whole round, also of a GPU host: by `manage.py doctor`, and by each node of itself."""

from collections.abc import Sequence

from portal.doctor import host
from portal.doctor.finding import ROLES, Finding, Role
from portal.doctor.rounds import Probe, findings, of_portal

HOST: tuple[Probe, ...] = (host.engine, host.daemon_json, host.injection, host.driver, host.network, host.strays)


def examine(roles: Sequence[Role] = ROLES, *, sampled: bool = False) -> list[Finding]:
    """Every finding of these roles, each once.

    `sampled`: what the node's own sampler says of NVML, instead of loading the library once more.
    """
    found: list[Finding] = []
    for role in roles:
        found += [finding for finding in of_portal(role) if finding not in found]
    if "node" in roles:
        found += findings((*HOST, host.nvml_as_sampled if sampled else host.nvml), "node")
    return found
