"""What every page's shell needs to know."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest


def shell(request: HttpRequest) -> dict[str, Any]:
    """Template context of the shell: whether the GPUs are simulated."""
    return {"simulated_gpus": settings.GPU_DRIVER == "simulated"}
