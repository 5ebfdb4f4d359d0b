"""System checks of the GPU side."""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import checks

from gpus import simulated

_PACKAGE, _MODULE = "nvidia-ml-py", "pynvml"


@checks.register()
def check_nvml_binding(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    """`gpus.W001`: another package has put itself in the place of NVIDIA's own binding."""
    clash = clashing_binding()
    if clash is None:
        return []
    return [
        checks.Warning(
            f"The module {_MODULE} comes from {clash} and not from the package {_PACKAGE}.",
            hint=f"Uninstall the other package, often named {_MODULE}, and reinstall {_PACKAGE}.",
            id="gpus.W001",
        )
    ]


@checks.register()
def check_simulated_mig(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    """`gpus.E002`: SIMULATED_MIG can't be read."""
    try:
        for profiles in simulated.read_mig(settings.SIMULATED_MIG).values():
            any(map(simulated.profile_mib, profiles))
    except ValueError:
        hint = "Write it as 0:1g.10gb+3g.40gb 2:7g.80gb: GPU by GPU, the profiles of its instances."
        return [checks.Error(f"SIMULATED_MIG is {settings.SIMULATED_MIG!r}.", hint=hint, id="gpus.E002")]
    return []


@checks.register()
def check_sample_freshness(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    """`gpus.E001`: readings would grow old before the next one comes, and no GPU would ever be free."""
    if settings.SAMPLE_FRESH > 3 * settings.SAMPLE_PERIOD:
        return []
    return [
        checks.Error(
            "SAMPLE_FRESH must be more than three times SAMPLE_PERIOD.",
            hint=f"They are {settings.SAMPLE_FRESH:g} and {settings.SAMPLE_PERIOD:g} seconds.",
            id="gpus.E001",
        )
    ]


def clashing_binding() -> str | None:
    """The file that `import pynvml` would load, when it is not that of nvidia-ml-py; None: all is well."""
    spec = find_spec(_MODULE)
    if spec is None or spec.origin is None:
        return None
    try:
        own = metadata.distribution(_PACKAGE).locate_file(f"{_MODULE}.py")
    except metadata.PackageNotFoundError:
        return spec.origin
    return None if Path(str(own)).resolve() == Path(spec.origin).resolve() else spec.origin
