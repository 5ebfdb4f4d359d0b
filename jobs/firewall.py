"""The jobs' own bridge: out to the world, but not to the host, to each other, or to a cloud's metadata."""

import shutil
import subprocess

from django.conf import settings

from jobs import containers
from jobs.containerspec import bridge_name

NETWORK = f"dockyard-{settings.INSTALLATION}"
BRIDGE = bridge_name(settings.INSTALLATION, settings.NODE_NAME)
METADATA = "169.254.0.0/16"


class NotProtected(Exception):
    """The rules could not be set: no job may start on the bridge."""


def ensure() -> None:
    """Make the network and its rules, or mend them; cheap when all is there. Raises NotProtected, EngineUnavailable."""
    if settings.JOB_NETWORK == "none":
        return
    containers.ensure_network(NETWORK, BRIDGE)
    if shutil.which("iptables") is None:
        raise NotProtected("iptables is not installed: apt-get install iptables")
    _rule("INPUT", "-i", BRIDGE, "-j", "DROP")  # every address of the host itself
    chain = "DOCKER-USER" if _run("-n", "-L", "DOCKER-USER").returncode == 0 else "FORWARD"
    _rule(chain, "-i", BRIDGE, "-d", METADATA, "-j", "DROP")


def _rule(chain: str, *rule: str) -> None:
    """The rule, first in its chain, unless the chain has it."""
    if _run("-C", chain, *rule).returncode == 0:
        return
    done = _run("-I", chain, "1", *rule)
    if done.returncode:
        raise NotProtected(f"iptables: {done.stderr.strip()[:200]}")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["iptables", "-w", "5", *arguments], capture_output=True, text=True, timeout=30, check=False)
