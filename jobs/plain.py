"""Text that is not ours, shown among ours: nothing invisible in it may turn or hide what stands around it. Pure."""

import re

# Control characters, separators of lines and paragraphs, and whatever sets a direction (Unicode's Bidi_Control).
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_visible(text: str) -> bool:
    """Whether nothing in it acts without being seen."""
    return INVISIBLE.search(text) is None


def visible(text: str) -> str:
    """With U+FFFD for each character that acts without being seen."""
    return INVISIBLE.sub("\ufffd", text)


def is_number(text: str) -> bool:
    """Whether it is a number that a database may look for: a whole one, of 18 digits at most."""
    return text.isdecimal() and len(text) < 19


def storable(text: str) -> str:
    """With U+FFFD for each character that PostgreSQL's text and JSON refuse: NUL, and halves of surrogate pairs."""
    return _UNSTORABLE.sub("\ufffd", text)


def first_line(said: object, most: int = 200) -> str:
    """Of an error's words, or a program's: never empty, at most so many characters."""
    lines = str(said).strip().splitlines() or [type(said).__name__ if isinstance(said, Exception) else "?"]
    return lines[0][:most]
