"""Say of all that runs that Dockyard is shut down with its containers, as its demo is. Other restarts leave them be."""

from django.utils import timezone

from jobs.control import wish
from jobs.models import Run
from jobs.states import RunState, Wish


def shut_down() -> int:
    """RUNNING → STOPPING for every run, whose container the caller removes next; how many there were.

    Its node ends it when it looks again, with the output that there was. What had not started starts then.
    """
    runs = Run.objects.filter(state=RunState.RUNNING).select_related("job", "node")
    return sum(_stop(run) for run in runs)


def _stop(run: Run) -> bool:
    now = timezone.now()
    wish(run, Wish.SHUT_DOWN)
    return run.advance(RunState.RUNNING, RunState.STOPPING, stopping_at=now)
