"""What is wrong with a value of a request, in the reader's language: pydantic itself speaks English only."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext as _

Context = Mapping[str, Any]

_WHOLE = "int_type int_parsing int_parsing_size int_from_float"
_NUMBER = "float_type float_parsing finite_number"
_BOOL = "bool_type bool_parsing"
_OBJECT = "dict_type model_type model_attributes_type"
_UUID = "uuid_type uuid_parsing uuid_version"
_TIME = "datetime_type datetime_parsing datetime_object_invalid datetime_from_date_parsing timezone_aware"

_WORDS: dict[str, Callable[[Context], str]] = {
    "missing": lambda c: _("This field is needed."),
    "string_type": lambda c: _("This must be text."),
    "string_unicode": lambda c: _("This is no valid text: it has half a character in it."),
    "string_too_long": lambda c: _("At most %(max_length)d characters fit.") % c,
    "too_long": lambda c: _("At most %(max_length)d of them fit.") % c,
    "list_type": lambda c: _("This must be a list."),
    "greater_than": lambda c: _("This must be more than %(gt)s.") % c,
    "greater_than_equal": lambda c: _("This must be at least %(ge)s.") % c,
    "less_than_equal": lambda c: _("This must be at most %(le)s.") % c,
    "literal_error": lambda c: _("This must be one of: %(known)s.") % {"known": _quoted(c["expected"])},
    "duration_type": lambda c: _("This must be a number of seconds, or text such as 2h."),
    "place_type": lambda c: _("This must be up, down or the number of a job."),
    "value_error": lambda c: str(c["error"]),
    **dict.fromkeys(_WHOLE.split(), lambda c: _("This must be a whole number.")),
    **dict.fromkeys(_NUMBER.split(), lambda c: _("This must be a number.")),
    **dict.fromkeys(_BOOL.split(), lambda c: _("This must be true or false.")),
    **dict.fromkeys(_OBJECT.split(), lambda c: _("This must be an object of names and values.")),
    **dict.fromkeys(_UUID.split(), lambda c: _("This must be a UUID.")),
    **dict.fromkeys(_TIME.split(), lambda c: _("This must be a time with its zone, such as 2026-01-31T18:00+01:00.")),
}


def sentence(kind: str, context: Context) -> str:
    """A pydantic error of this type as a sentence; one that has no words of its own is named."""
    try:
        return _WORDS[kind](context)
    except (KeyError, TypeError, ValueError):
        return _("This value does not do (%(code)s).") % {"code": kind}


def _quoted(expected: str) -> str:
    return ", ".join(re.findall(r"'([^']*)'", expected))
