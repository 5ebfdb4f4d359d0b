"""The timeline of hosts and GPUs: its page, which says all of it in a table too, and its data."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from jobs import timeline
from jobs.access import get_job
from jobs.plain import is_number
from jobs.views import signed_in

MOST_ROWS = 200
BEFORE, AFTER = timedelta(hours=8), timedelta(hours=16)
RANGES = (1, 6, 24, 7 * 24, 30 * 24, 365 * 24)  # hours


@signed_in
@require_GET
def page(request: HttpRequest) -> HttpResponseBase:
    """The page; for its script only the table, of the window that is asked for."""
    now = timezone.now()
    start, end = _asked(request, now)
    found = timeline.picture(request.user, start, end, now)
    context = {"rows": _rows(found), "most": MOST_ROWS, "found": found, "start": start, "end": end}
    if "table" in request.GET:
        return render(request, "jobs/_timeline_table.html", context)
    return render(request, "jobs/timeline.html", {**context, "ranges": [(hours, _range(hours)) for hours in RANGES]})


@signed_in
@require_GET
@never_cache
def data(request: HttpRequest) -> HttpResponse:
    """The window from `from` to `to`, in seconds since 1970."""
    now = timezone.now()
    return JsonResponse(timeline.picture(request.user, *_asked(request, now), now))


def _asked(request: HttpRequest, now: datetime) -> tuple[datetime, datetime]:
    """The window: as asked, around a job, or around now; nonsense is left out."""
    job = request.GET.get("job", "")
    if is_number(job):
        return timeline.window_of(get_job(request.user, int(job)), now)
    start, end = _moment(request.GET.get("from", "")), _moment(request.GET.get("to", ""))
    if start is None or end is None or not timeline.SHORTEST <= end - start <= timeline.LONGEST:
        return now - BEFORE, now + AFTER
    return start, end


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(text[:20]), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _range(hours: int) -> str:
    if hours == RANGES[-1]:
        return _("year")
    if hours < 24:
        return _("%(count)d h") % {"count": hours}
    return {24: _("day"), 7 * 24: _("week"), 30 * 24: _("month")}[hours]


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What comes and what runs first, then what ran, the newest first."""
    expected = [_times(row, host=row["kept"] or "", gpus=row["gpus"], state="QUEUED") for row in found["expected"]]
    blocks = sorted(found["blocks"] or (), key=lambda block: (block["to"] is not None, -block["from"]))
    ran = [_times(block, **_where(block, found)) for block in blocks[: MOST_ROWS - min(len(expected), MOST_ROWS // 2)]]
    return [*expected[: MOST_ROWS // 2], *ran]


def _where(block: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    host = found["hosts"][block["host"]]
    return {"host": host["name"], "indexes": [host["gpus"][lane]["index"] for lane in block["lanes"]]}


def _times(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = ("from", "to", "until", "kept_from")
    moments = {f"{name}_at": row.get(name) and datetime.fromtimestamp(row[name], UTC) for name in names}
    return {**row, **moments, **more}
