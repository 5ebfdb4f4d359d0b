"""What every page's shell needs to know."""

from typing import Any

from django.apps import apps
from django.http import HttpRequest


def shell(request: HttpRequest) -> dict[str, Any]:
    """Template context of the shell: whether an admin has paused all starts.

    Why they are paused is for those who are logged in.
    """
    if request.headers.get("HX-Request"):
        return {}
    cluster = apps.get_model("jobs", "Cluster")
    row = cluster.objects.filter(paused=True).values_list("pause_reason", flat=True).first()
    signed_in = getattr(request, "user", None) is not None and request.user.is_authenticated
    return {"starts_paused": row is not None, "pause_reason": row if row and signed_in else ""}
