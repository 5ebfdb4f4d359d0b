"""E-mail at a job's end."""


def job_ended(job_id: int) -> None:
    """Nothing to send to without EMAIL_URL."""
