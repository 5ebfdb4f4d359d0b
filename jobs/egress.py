"""Where a job's packets may go once they are past its host, as rules of a firewall's chain. Pure."""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, ip_network

OPEN, LISTED, NOTHING = "open", "listed", "nothing"
METADATA = "169.254.0.0/16"  # where clouds tell a host's secrets to whoever asks from it


def chain_of(bridge: str) -> str:
    """The name of the chain that belongs to a bridge."""
    return f"{bridge}-out"


class BadNetworks(ValueError):
    """What is no IPv4 network: str() is the word."""


def networks(text: str) -> list[str]:
    """Networks such as 10.1.0.0/16 and 10.2.3.4, parted by blanks, commas or lines. Raises BadNetworks."""
    return [_network(word) for word in re.split(r"[\s,]+", text) if word]


def _network(word: str) -> str:
    try:
        found = ip_network(word, strict=False)
    except ValueError as error:
        raise BadNetworks(word) from error
    if not isinstance(found, IPv4Network):
        raise BadNetworks(word)
    return str(found)


def rules(chain: str, services: Iterable[tuple[str, int]], policy: str, allowed: Sequence[str]) -> list[str]:
    """The chain's rules as iptables prints them: what goes through to the end of it may leave.

    Never to the metadata of a cloud, nor to a port of the host that leads into a container (its address is another's by
    now), nor to the portal's `services` (IPv4 address, port), whatever else is allowed.
    """
    found = [f"-A {chain} -d {METADATA} -j DROP", f"-A {chain} -m conntrack --ctstate DNAT -j DROP"]
    found += [f"-A {chain} -d {ip}/32 -p tcp -m tcp --dport {port} -j DROP" for ip, port in sorted(set(services))]
    if policy == LISTED:
        found += [f"-A {chain} -d {network} -j RETURN" for network in allowed]
    return found if policy == OPEN else [*found, f"-A {chain} -j DROP"]
