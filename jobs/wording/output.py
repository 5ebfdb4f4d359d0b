"""What a program says of its own progress."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

_OWN_WORDS = frozenset({"marker", "bar", "percent"})  # of ours; all others are the program's


def output_progress(found: Mapping[str, Any]) -> str:
    """`Run.output_progress` as "step 120 of 500", in the program's own word; "" when it told no more than a share."""
    done, total, label = found.get("done"), found.get("total"), str(found.get("label", ""))
    if not isinstance(done, int | float) or not isinstance(total, int | float) or label == "percent" or total <= 1:
        return ""
    said = _("%(done)s of %(total)s") % {"done": _number(done), "total": _number(total)}
    return said if label in _OWN_WORDS else f"{label} {said}"


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"
