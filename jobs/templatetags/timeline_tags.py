"""The rows of the timeline's table. In Python and not in a template: there are hundreds on a page."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from django import template
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from jobs.states import JobState
from jobs.templatetags.job_tags import state_chip
from portal.templatetags.dockyard import named, when

register = template.Library()
Row = Mapping[str, Any]


@register.simple_tag
def timeline_rows(rows: Iterable[Row]) -> SafeString:
    """One `<tr>` for each of `jobs.timeline_views._rows`, as the head of the table has its columns."""
    labels = [escape(label) for label in (_("Owner"), _("Host"), _("GPUs"), _("From"), _("To"))]
    latest, limit = _aside(_("start, at the latest")), _aside(_("its limit"))
    return mark_safe("\n".join(_row(row, labels, latest, limit) for row in rows))  # noqa: S308 - see `_row`


def _row(row: Row, labels: Iterable[str], latest: str, limit: str) -> str:
    """What people or hosts have named is escaped; the rest is numbers, times and our own words."""
    href = f"/jobs/{row['job']:d}/"
    data, link = "", ""
    if row["name"] is not None:
        data, link = f' data-href="{href}"', f'<a class="job-name" href="{href}">{named(row["name"])}</a> '
    cells = (
        escape(row["owner"]), escape(row["host"] or "–"), _gpus(row), when(row.get("from_at"), "at"),
        _end(row, latest, limit),
    )  # fmt: skip
    told = "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in zip(labels, cells, strict=True))
    return (
        f"<tr{data}><td>{state_chip(row['state'])}</td>"
        f'<td class="job-cell">{link}<span class="text-secondary">#{row["job"]:d}</span></td>{told}</tr>'
    )


def _gpus(row: Row) -> str:
    """Which GPUs; how many, where it is not yet known which."""
    if row.get("indexes"):
        return ", ".join(map(str, row["indexes"]))
    return str(row["gpus"]) if row["state"] == JobState.QUEUED else "–"


def _end(row: Row, latest: str, limit: str) -> str:
    if row["to_at"]:
        return when(row["to_at"], "at") + (latest if row["state"] == JobState.QUEUED else "")
    return when(row["until_at"], "at") + limit if row["until_at"] else "–"


def _aside(words: str) -> str:
    return f' <span class="text-secondary">({escape(words)})</span>'
