"""A row's figures and its bar on the fair-share page. In Python and not in templates: there are hundreds of rows."""

from html import escape
from typing import Any

from django import template
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from jobs import wording
from jobs.templatetags.words import place
from jobs.wording import shares

register = template.Library()


@register.simple_tag
def share_figures(row: Any) -> SafeString:
    """Place, shares and use of a row of `jobs.standings`."""
    found = row.standing
    said = [f"<b>{escape(place(found.rank, row.of))}</b>", escape(shares.count(found)),
            escape(wording.gpu_hours(found.used))]  # fmt: skip
    if found.promised:
        said.append(escape(_("up to %(hours)s more by what runs") % {"hours": wording.gpu_hours(found.promised)}))
    return mark_safe(" ".join(f"<span>{text}</span>" for text in said))  # noqa: S308 - each is escaped


@register.simple_tag
def share_bar(row: Any) -> SafeString:
    """What of the use was its own, and a mark at what is due to it."""
    found = row.standing
    above = " bar-above" if found.part > found.due else ""
    return mark_safe(  # noqa: S308 - words are escaped; the rest is numbers
        '<div class="share-bar"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(shares.of_the_use(found))}">'
        f'<rect class="bar-used{above}" width="{round(100 * found.part)}" height="8"/>'
        f'<rect class="bar-due" x="{_mark_at(found.due)}" width="0.8" height="8"/></svg>'
        f'<span class="text-secondary small" aria-hidden="true">{escape(shares.had_and_due(found))}</span></div>'
    )


def _mark_at(part: float) -> str:
    """Where a mark 0.8 wide stands on a bar of a hundred."""
    return f"{min(100 * part, 99.2):.1f}"
