"""How a code finds its words."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext

Params = Mapping[str, Any]
Table = dict[str, Callable[[Params], str]]

log = logging.getLogger(__name__)


def say(table: Table, code: str, params: Params) -> str:
    """The sentence of `code`. One that fails is named rather than raised: the page matters more than the number."""
    try:
        return table[code](params)
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("no words for %s with %s", code, sorted(params))
        return gettext("Code %(code)s.") % {"code": code}
