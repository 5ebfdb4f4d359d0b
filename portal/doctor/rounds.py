"""The doctor's round of a process of the portal: web or scheduler. It asks no engine and no driver."""

from collections.abc import Callable, Iterable, Iterator

from jobs.plain import first_line
from portal.doctor import stores
from portal.doctor.finding import Finding, Role, fail, words

Probe = Callable[[Role], Iterator[Finding]]

PORTAL: tuple[Probe, ...] = (
    stores.settings_make_sense, stores.database, stores.redis_server, stores.storage, stores.folders, stores.disk,
    stores.clock, stores.versions,
)  # fmt: skip


def of_portal(role: Role) -> list[Finding]:
    """What such a process finds, in the order in which one would mend it."""
    return findings(PORTAL, role)


def findings(probes: Iterable[Probe], role: Role) -> list[Finding]:
    """What these looks find, each thing once."""
    found: list[Finding] = []
    for probe in probes:
        try:
            found += [finding for finding in probe(role) if finding not in found]
        except Exception as error:  # noqa: BLE001 - a look that breaks is a finding too, and the others go on
            what = f"{probe.__module__.rpartition('.')[2]}.{probe.__name__}"
            found.append(fail(words(what), words(first_line(repr(error))), words("manage.py doctor")))
    return found
