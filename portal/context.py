"""What every page's shell needs to know."""

from typing import Any

from django.apps import apps
from django.conf import settings
from django.http import HttpRequest


def shell(request: HttpRequest) -> dict[str, Any]:
    """Template context of the shell: whether the GPUs are simulated, and whether an admin has paused all starts."""
    context: dict[str, Any] = {"simulated_gpus": settings.GPU_DRIVER == "simulated"}
    if getattr(request, "user", None) is None or not request.user.is_authenticated or request.headers.get("HX-Request"):
        return context
    cluster = apps.get_model("jobs", "Cluster")
    row = cluster.objects.filter(paused=True).values_list("pause_reason", flat=True).first()
    return {**context, "starts_paused": row is not None, "pause_reason": row or ""}
