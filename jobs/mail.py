"""E-mail to a job's owner: at its end, and once when its GPUs are idle.

Without an e-mail server it does nothing; a failure is logged and stops nobody.
"""

import logging
import re
import smtplib
from threading import Thread
from typing import Any

from django.conf import settings
from django.core.mail import EmailMultiAlternatives, get_connection
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from jobs import logstore, wording
from jobs.models import Job, Run
from jobs.states import ENDED, LIVE_RUNS
from portal.accounts import mail_works

log = logging.getLogger(__name__)

LINES = 20
TIMEOUT = 20  # seconds for each exchange with the mail server
TAIL_BYTES = 16 * 1024
# What terminals take as orders: CSI and OSC sequences, other escapes, and control characters but tab and newline.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b-\x1f\x7f]")


def job_ended(job_id: int) -> None:
    """Tell the owner of an ended job how it ended. Called after commit; never raises for the mail's sake."""
    if not mail_works():
        return
    job = Job.objects.select_related("owner", "team").filter(pk=job_id, state__in=ENDED).first()
    if job is not None and _is_reached(job):
        Thread(target=_send, args=(message(job), job_id), daemon=True).start()


def run_idle(run_id: int) -> None:
    """Tell the owner of a run whose GPUs are idle, once a job, where IDLE_MAIL is on. Never raises for the mail's
    sake; that it was told is the event TOLD_IDLE."""
    if not settings.IDLE_MAIL or not mail_works():
        return
    with transaction.atomic():
        live = Run.objects.select_related("job__owner", "job__team", "node").filter(state__in=LIVE_RUNS)
        run = live.filter(pk=run_id).first()
        if run is None or run.idle_warning is None or not _is_reached(run.job):
            return
        Job.objects.select_for_update(no_key=True).get(pk=run.job_id)
        if run.job.events.filter(kind="TOLD_IDLE").exists():
            return
        run.job.note("TOLD_IDLE", run=run)
    Thread(target=_send, args=(idle_message(run), run.job_id), daemon=True).start()


def _is_reached(job: Job) -> bool:
    return bool(job.owner.email) and job.owner.is_active


def _send(mail: EmailMultiAlternatives, job_id: int) -> None:
    """In a thread of its own: a slow mail server must not hold up the host's other jobs."""
    try:
        mail.connection = get_connection(timeout=TIMEOUT)
        mail.send()
    except (smtplib.SMTPException, OSError) as error:
        log.warning("no e-mail about job %d: %s", job_id, error)


def message(job: Job) -> EmailMultiAlternatives:
    """The e-mail about an ended job, in its owner's language."""
    run = job.runs.select_related("node", "wish_by").order_by("-number").first()
    with translation.override(job.owner.language or settings.LANGUAGE_CODE):
        state = str(wording.state_label(job.state))
        return _letter(job, run, state, wording.end_sentence(job, run), wording.suggestion(job, run))


def idle_message(run: Run) -> EmailMultiAlternatives:
    """The e-mail about a live run with an idle warning, in its owner's language."""
    with translation.override(run.job.owner.language or settings.LANGUAGE_CODE):
        advice = _("Others may wait for them: cancel it if it has done its work, or see in its log what holds it up.")
        return _letter(run.job, run, _("GPUs idle"), wording.warning(run.idle_warning or {}), advice)


def _letter(job: Job, run: Run | None, state: str, sentence: str, suggestion: Any) -> EmailMultiAlternatives:
    """In the active language."""
    context = {
        "job": job, "run": run, "state": state, "sentence": sentence, "suggestion": suggestion,
        "tail": last_lines(run) if run else "", "link": settings.PUBLIC_URL.rstrip("/") + job.get_absolute_url(),
    }  # fmt: skip
    subject = _("Job #%(id)d %(name)s: %(state)s") % {"id": job.pk, "name": job.name, "state": state}
    mail = EmailMultiAlternatives(
        " ".join(subject.split()), render_to_string("emails/job.txt", context), to=[job.owner.email]
    )  # fmt: skip
    mail.attach_alternative(render_to_string("emails/job.html", context), "text/html")
    return mail


def last_lines(run: Run) -> str:
    """The end of the log as plain text: what a terminal would show, without its orders."""
    size = logstore.size(run)
    if not size:
        return ""
    text = logstore.read(run, max(size - TAIL_BYTES, 0), size).decode(errors="replace")
    lines = [_TERMINAL.sub("", line.rstrip("\r").rpartition("\r")[2])[:500] for line in text.split("\n")]
    if size > TAIL_BYTES:
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines[-LINES:])
