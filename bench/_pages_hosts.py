"""The hosts of the pages' benchmark, in a process of their own: all read their GPUs once a second and are heard of.

Each at its own moment, as hosts are; and something happens to a job each second. Until its standard input is closed.
"""

import os
import select
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")

import django

django.setup()

from django.utils import timezone

from bench import _pages_data as data
from gpus.models import Node
from gpus.record import Recorder
from jobs import claims
from jobs.models import Job, JobEvent


def main() -> None:
    names = data.host_names()
    recorders = {name: Recorder(name) for name in names}
    held = {name: claims.of_node(name) for name in names}
    job = Job.objects.latest("pk").pk
    begun, number = time.monotonic(), 0
    while not _is_over(begun + number / len(names) - time.monotonic()):
        name = names[number % len(names)]
        recorders[name].record(data.reading(name, held[name]))
        Node.objects.filter(name=name).update(last_seen=timezone.now())
        if name == names[0]:
            JobEvent.objects.create(job_id=job, kind="WARNED", params=data.LOST_GPU)
        number += 1


def _is_over(seconds: float) -> bool:
    """Whether nobody listens any more, after at most so many seconds."""
    return bool(select.select([sys.stdin], [], [], max(seconds, 0))[0])


if __name__ == "__main__":
    main()
