"""The jobs' own bridge: out as far as admins let, but never to the host, each other, the portal's own services, or a
cloud's metadata."""

import logging
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from django.conf import settings

from jobs import containers, egress
from jobs.containerspec import bridge_name
from jobs.models import Cluster, Job
from portal import databases

log = logging.getLogger(__name__)

NETWORK = f"dockyard-{settings.INSTALLATION}"
BRIDGE = bridge_name(settings.INSTALLATION, settings.NODE_NAME)
_looked_up: dict[str, set[str]] = {}  # addresses by name


class NotProtected(Exception):
    """The rules could not be set: no job may start on the bridge."""


def network_of(job: Job) -> str:
    """The network that a container of the job joins; "none" has only its own loopback."""
    if settings.JOB_NETWORK == "none" or job.offline or policy()[0] == egress.NOTHING:
        return "none"
    return NETWORK


def policy() -> tuple[str, list[str]]:
    """What admins allow, for `ensure`: the kind, and the networks of a list. One that can't be read allows nothing."""
    row = Cluster.objects.filter(pk=1).values_list("egress", "egress_networks").first()
    kind, text = row or (egress.OPEN, "")
    try:
        return kind, egress.networks(text)
    except egress.BadNetworks as error:
        log.warning("%s is no network: jobs reach nothing", error)
        return egress.NOTHING, []


def ensure(kind: str, allowed: Sequence[str]) -> None:
    """Make the network and its rules, or mend them; cheap when all is there. Raises NotProtected, EngineUnavailable.

    Where a name can't be looked up just now, the rules that are there stay.
    """
    if settings.JOB_NETWORK == "none":
        return
    containers.ensure_network(NETWORK, BRIDGE)
    if shutil.which("iptables") is None:
        raise NotProtected("iptables is not installed: apt-get install iptables")
    _first("iptables", "INPUT", "-i", BRIDGE, "-j", "DROP")  # every address of the host itself
    chain = egress.chain_of(BRIDGE)  # a change of its rules is one step
    _fill(chain, egress.rules(chain, _services(), kind, allowed))
    _first("iptables", _forwarding("iptables"), "-i", BRIDGE, "-j", chain)
    if _has_ipv6():  # the bridge has none, but whoever turns it on opens nothing
        for chain in ("INPUT", _forwarding("ip6tables")):
            _first("ip6tables", chain, "-i", BRIDGE, "-j", "DROP")


def _services() -> Iterator[tuple[str, int]]:
    """IPv4 address and port of Redis, database, engine and the portal's web, where they are on other hosts.

    Names are looked up. Raises NotProtected.
    """
    redis, engine = urlsplit(settings.REDIS_URL), urlsplit(settings.DOCKER_HOST)
    asked = [(redis.hostname, redis.port or 6379), *databases.servers(settings.DATABASES["default"])]
    if engine.scheme == "tcp":
        asked.append((engine.hostname, engine.port or 2375))
    for host, port in asked:
        for address in _addresses(host, spoken_to=True) if host and not host.startswith("/") else ():
            yield address, port
    web = urlsplit("" if settings.JOBS_REACH_PORTAL else settings.PUBLIC_URL)
    for address in _addresses(web.hostname, spoken_to=False) if web.hostname else ():
        yield address, web.port or (443 if web.scheme == "https" else 80)


def _addresses(host: str, *, spoken_to: bool) -> set[str]:
    """While names can't be looked up: the addresses found last. `spoken_to`: by this host, so that it must have some.

    Raises NotProtected.
    """
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        if not isinstance(error, socket.gaierror) or error.errno != socket.EAI_AGAIN:
            return set()  # nor could anybody speak to it
        if spoken_to and host not in _looked_up:
            raise NotProtected(f"the address of {host} cannot be looked up just now") from error
        return _looked_up.get(host, set())
    _looked_up[host] = {str(address[0]) for *_rest, address in found if not str(address[0]).startswith("127.")}
    return _looked_up[host]


def _fill(chain: str, rules: list[str]) -> None:
    """Let the chain have these rules and no others, at once."""
    there = _run("iptables", "-S", chain)
    if there.returncode == 0 and [line for line in there.stdout.splitlines() if line.startswith("-A ")] == rules:
        return
    text = "\n".join(["*filter", f":{chain} - [0:0]", *rules, "COMMIT", ""])
    _must(_run("iptables-restore", "--noflush", given=text))


def _forwarding(program: str) -> str:
    return "DOCKER-USER" if _run(program, "-n", "-L", "DOCKER-USER").returncode == 0 else "FORWARD"


def _has_ipv6() -> bool:
    return shutil.which("ip6tables") is not None and _run("ip6tables", "-n", "-L", "INPUT").returncode == 0


def _first(program: str, chain: str, *rule: str) -> None:
    """The rule, first in its chain, unless the chain has it."""
    if _run(program, "-C", chain, *rule).returncode:
        _must(_run(program, "-I", chain, "1", *rule))


def _must(done: "subprocess.CompletedProcess[str]") -> None:
    if done.returncode:
        raise NotProtected(f"iptables: {done.stderr.strip()[:200]}")


def _run(program: str, *arguments: str, given: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [program, "-w", "5", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=30, check=False)
