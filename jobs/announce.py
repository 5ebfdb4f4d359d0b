"""Tell watching browsers, after commit, that something changed. Losing every one of these costs only seconds."""

from django.db import transaction

from portal import live


def job_changed(job_id: int) -> None:
    """Announce a job's change to its page and to every list, once the transaction has committed."""
    transaction.on_commit(lambda: _publish(job_id), robust=True)


def _publish(job_id: int) -> None:
    live.publish((live.job_topic(job_id), live.JOBS), {"job": job_id})
