"""Close GPUs that seem broken to jobs, until an admin looks at them."""

from collections.abc import Iterable

from gpus.models import GPU, HostEvent


def quarantine(uuids: Iterable[str], why: str) -> None:
    """No more jobs for these GPUs, and a line in their host's journal. One that is closed already keeps its reason."""
    for gpu in GPU.objects.filter(uuid__in=list(uuids), quarantine_reason=""):
        if GPU.objects.filter(pk=gpu.pk, quarantine_reason="").update(quarantine_reason=why):
            HostEvent.objects.create(
                node_id=gpu.node_id, kind="GPU_QUARANTINED", params={"index": gpu.index, "why": why}
            )
