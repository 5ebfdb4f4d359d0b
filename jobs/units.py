"""Durations, sizes and CPU counts as people write them. Pure; the form, the API and the CLI all read them here."""

import re
from fractions import Fraction

_NUMBER = r"(\d{1,12}(?:[.,]\d{1,30})?)"
_DURATION_PART = re.compile(_NUMBER + r"\s*([a-z]*)", re.ASCII)
_SIZE = re.compile(_NUMBER + r"\s*([a-z]*)", re.ASCII)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("w", "week", "weeks"), 604800),
}
# Powers of 1024 throughout: memory limits are binary, and nobody means 15.26 GiB by "16 GB".
_MIB = {
    **dict.fromkeys(("b", "byte", "bytes"), Fraction(1, 1024 * 1024)),
    **dict.fromkeys(("k", "ki", "kb", "kib"), Fraction(1, 1024)),
    **dict.fromkeys(("m", "mi", "mb", "mib"), Fraction(1)),
    **dict.fromkeys(("", "g", "gi", "gb", "gib"), Fraction(1024)),
    **dict.fromkeys(("t", "ti", "tb", "tib"), Fraction(1024 * 1024)),
}
MOST = 2**31 - 1  # what the database's integer columns hold


def gettext_noop(text: str) -> str:
    """Marks a sentence for the catalogues; whoever shows it translates it."""
    return text


WORDS = {
    "BAD_DURATION": gettext_noop('"%(text)s" is no duration; write it as 30m, 2h or 1d 4h.'),
    "BAD_SIZE": gettext_noop('"%(text)s" is no size of memory; write it as 512 MiB or 16 GiB.'),
    "BAD_CPUS": gettext_noop('"%(text)s" is no number of CPUs; write it as 4 or 0.5.'),
    "QUANTITY_LARGE": gettext_noop('"%(text)s" is larger than can be stored.'),
}


class BadQuantity(ValueError):
    """A text that is no quantity: `code` is one of WORDS, `text` its beginning."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text[:80]!r}")
        self.code = code
        self.text = text[:80]


def _number(text: str) -> Fraction:
    return Fraction(text.replace(",", "."))


def parse_duration(text: str) -> int:
    """Seconds in "90", "2h", "1d 4h 30m", "1.5 hours" or "1:30:00" (hours first). Raises BadQuantity."""
    return _duration(text, lone=1)


def parse_limit(text: str) -> int:
    """Seconds in a time limit: as `parse_duration`, but a lone number is minutes, as batch systems have it."""
    return _duration(text, lone=60)


def _duration(text: str, lone: int) -> int:
    clean = text.strip().lower()
    seconds = _clock(clean) if ":" in clean else _parts(clean, lone)
    if seconds is None:
        raise BadQuantity("BAD_DURATION", text)
    return _whole(seconds, text)


def _clock(clean: str) -> Fraction | None:
    match = re.fullmatch(r"(\d{1,6}):([0-5]\d)(?::([0-5]\d))?", clean, re.ASCII)
    if match is None:
        return None
    hours, minutes, seconds = match.groups("0")
    return Fraction(int(hours) * 3600 + int(minutes) * 60 + int(seconds))


def _parts(clean: str, lone: int) -> Fraction | None:
    """The sum of number-and-unit pairs; a lone number counts `lone` seconds, one among pairs is a mistake."""
    pairs = _DURATION_PART.findall(clean)
    if not pairs or _DURATION_PART.sub("", clean).strip(" ,"):
        return None
    if len(pairs) == 1 and not pairs[0][1]:
        return _number(pairs[0][0]) * lone
    if any(unit not in _SECONDS for _, unit in pairs):
        return None
    return sum((_number(number) * _SECONDS[unit] for number, unit in pairs), Fraction(0))


def _whole(value: Fraction, text: str) -> int:
    number = round(value)
    if number > MOST:
        raise BadQuantity("QUANTITY_LARGE", text)
    return number


def parse_memory_mib(text: str) -> int:
    """MiB in "16 GiB", "1.5g", "100Mi", "512M" or "16" (GiB when there is no unit). Raises BadQuantity."""
    clean = text.strip().lower()
    match = _SIZE.fullmatch(clean)
    if match is None or match[2] not in _MIB:
        raise BadQuantity("BAD_SIZE", text)
    return _whole(_number(match[1]) * _MIB[match[2]], text)


def parse_millicpus(text: str) -> int:
    """Thousandths of a CPU, rounded, in "4", "0.5", "0.33333" or "500m". Raises BadQuantity."""
    clean = text.strip().lower()
    match = re.fullmatch(_NUMBER + r"(m?)", clean, re.ASCII)
    if match is None:
        raise BadQuantity("BAD_CPUS", text)
    return _whole(_number(match[1]) * (1 if match[2] else 1000), text)


def format_duration(seconds: float) -> str:
    """The duration in its two largest units: "1 d 4 h", "2 h", "1 min 5 s", "0 s". Rounds down."""
    rest = max(int(seconds), 0)
    parts: list[tuple[int, str]] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count) or "0 s"


def exact_duration(seconds: int) -> str:
    """The duration as `parse_duration` reads it back, to the second: "1d 4h 30m", "90s" as "1m 30s"."""
    rest = max(seconds, 0)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def exact_memory(mib: int) -> str:
    """The size as `parse_memory_mib` reads it back, to the MiB."""
    return f"{mib // 1024} GiB" if mib % 1024 == 0 and mib else f"{mib} MiB"


def format_memory(mib: float) -> str:
    """The size in the largest unit that keeps it above 1: "512 MiB", "16 GiB", "1.5 GiB"."""
    for unit, size in (("TiB", 1024 * 1024), ("GiB", 1024)):
        if mib >= size:
            return f"{_short(mib / size)} {unit}"
    return f"{_short(mib)} MiB"


def format_cpus(millicpus: float) -> str:
    """The number of CPUs without needless zeros: "4", "0.5"."""
    return f"{millicpus / 1000:.3f}".rstrip("0").rstrip(".")


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if value < 100 else f"{value:.0f}"
