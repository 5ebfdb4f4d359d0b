"""The e-mail at a job's end. Without an e-mail server it does nothing; a failure is logged and stops nobody."""

import logging
import re
import smtplib
from threading import Thread

from django.conf import settings
from django.core.mail import EmailMultiAlternatives, get_connection
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from jobs import logstore, wording
from jobs.models import Job, Run
from jobs.states import ENDED
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
    if job is None or not job.owner.email or not job.owner.is_active:
        return
    Thread(target=_send, args=(message(job), job_id), daemon=True).start()


def _send(mail: EmailMultiAlternatives, job_id: int) -> None:
    """In a thread of its own: a slow mail server must not hold up the host's other jobs."""
    try:
        mail.connection = get_connection(timeout=TIMEOUT)
        mail.send()
    except (smtplib.SMTPException, OSError) as error:
        log.warning("no e-mail about the end of job %d: %s", job_id, error)


def message(job: Job) -> EmailMultiAlternatives:
    """The e-mail about an ended job, in its owner's language."""
    run = job.runs.select_related("node", "wish_by").order_by("-number").first()
    with translation.override(job.owner.language or settings.LANGUAGE_CODE):
        state = wording.state_label(job.state)
        context = {
            "job": job, "run": run, "state": state, "sentence": wording.end_sentence(job, run),
            "suggestion": wording.suggestion(job, run), "tail": last_lines(run) if run else "",
            "link": settings.PUBLIC_URL.rstrip("/") + job.get_absolute_url(),
        }  # fmt: skip
        subject = _("Job #%(id)d %(name)s: %(state)s") % {"id": job.pk, "name": job.name, "state": state}
        mail = EmailMultiAlternatives(
            " ".join(subject.split()), render_to_string("emails/job_ended.txt", context), to=[job.owner.email]
        )  # fmt: skip
        mail.attach_alternative(render_to_string("emails/job_ended.html", context), "text/html")
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
