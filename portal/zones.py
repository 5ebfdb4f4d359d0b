"""The time zone that a browser names in its cookie."""

import functools
from zoneinfo import ZoneInfo, available_timezones


def zone_named(name: str) -> ZoneInfo | None:
    """The zone of that IANA name; None for whatever is none, such as a path."""
    return ZoneInfo(name) if name in _names() else None


@functools.cache  # walks the whole zone database: far too slow for every request
def _names() -> frozenset[str]:
    return frozenset(available_timezones())
