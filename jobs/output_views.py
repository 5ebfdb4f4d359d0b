"""What a job's program tells of itself: the numbers that it prints, as series."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from jobs.access import get_job
from jobs.job_views import run_of
from jobs.models import RunMetrics


@require_GET
@never_cache
@login_required
def metrics_json(request: HttpRequest, pk: int) -> JsonResponse:
    """The series of a run, see `jobs.models.RunMetrics`; empty when it printed none."""
    run = run_of(request, get_job(request.user, pk))
    found = RunMetrics.objects.filter(run=run).first() if run else None
    return JsonResponse({"run": run and run.number, "series": found.series if found else []})
