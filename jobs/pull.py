"""Bring images to this host for runs that wait for them, one pull an image, its progress shown on each."""

import logging
import threading
import time
from datetime import datetime, timedelta

from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone

from jobs import announce, containers, containers_images, hostfacts, secretbox
from jobs.finish import end_without_container
from jobs.launch import PULLING, why_refused
from jobs.models import RegistryLogin, Run
from jobs.queues import send_launch
from jobs.request import registry_of
from jobs.runlock import lock
from jobs.states import EndReason, RunState

log = logging.getLogger(__name__)
WRITE_PERIOD = 1.0


class Pulls:
    """The pulls under way on this host. Runs in the agent; `look` is called by its timer."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._begun: dict[str, datetime] = {}
        self._sent: dict[str, tuple[datetime, set[int]]] = {}  # by image, when it came, and the runs that were told

    def look(self, now: datetime) -> None:
        """Begin the pulls that runs wait for; send wished-away ones to their end; give up on those too long."""
        for run in _waiting():
            if run.wish:
                send_launch(run.node.name, run.pk)
            elif self._is_sent(run, now):
                continue
            elif run.starting_at and now - run.starting_at > _longest():
                limited = run.progress["code"] == "PULL_RETRY"
                reason = EndReason.IMAGE_RATE_LIMITED if limited else EndReason.PULL_FAILED
                _end(run, reason, "the pull took longer than PULL_TIMEOUT")
            elif _is_due(run, now):
                self._begin(run.job.image, now)

    def _begin(self, image: str, now: datetime) -> None:
        thread = self._threads.get(image)
        if thread is None or not thread.is_alive() or now - self._begun[image] > _longest():  # one that hangs is left
            self._begun[image] = now
            self._threads[image] = threading.Thread(target=self._pull, args=(image,), name=f"pull {image}", daemon=True)
            self._threads[image].start()

    def _is_sent(self, run: Run, now: datetime) -> bool:
        """Whether its start was sent a moment ago, as its image had come: others may be done first."""
        at, runs = self._sent.get(run.job.image, (now, set()))
        return run.pk in runs and now - at < timedelta(seconds=settings.START_RESEND)

    def _pull(self, image: str) -> None:
        close_old_connections()
        try:
            if _bring(image):
                runs = _waiting(image)
                self._sent[image] = timezone.now(), {run.pk for run in runs}
                for run in runs:
                    send_launch(run.node.name, run.pk)
        except (containers.EngineUnavailable, containers.EngineRefused, secretbox.Unreadable) as error:
            log.warning("pull of %s failed, to be tried again: %s", image, error)
        finally:
            close_old_connections()


def _longest() -> timedelta:
    return timedelta(seconds=settings.PULL_TIMEOUT)


def _waiting(image: str | None = None) -> list[Run]:
    """This node's runs that wait for an image."""
    runs = Run.objects.filter(node__name=settings.NODE_NAME, state=RunState.STARTING).select_related("job", "node")
    if image is not None:
        runs = runs.filter(job__image=image)
    return [run for run in runs if _is_waiting(run)]


def _is_waiting(run: Run) -> bool:
    return run.state == RunState.STARTING and run.progress.get("code") in PULLING


def _is_due(run: Run, now: datetime) -> bool:
    return run.progress["code"] == "PULLING" or now >= datetime.fromisoformat(run.progress["at"])


def _bring(image: str) -> bool:
    """Whether the image is there now. One that is there is not asked for again, whatever became of its name since."""
    if containers_images.image(image):
        return True
    begun = timezone.now()
    try:
        containers_images.pull(image, _login(image), _Progress(image))
        return True
    except containers.ImageRateLimited as error:
        log.warning("pull of %s: the registry's rate limit: %s", image, error)
        again = timezone.now() + timedelta(seconds=settings.PULL_RETRY)
        _write(image, {"code": "PULL_RETRY", "at": again.isoformat()})
    except containers.EngineRefused as error:
        containers.confirm(begun)  # what an engine that goes down refuses is no job's fault
        if containers_images.image(image):  # brought by somebody else meanwhile
            return True
        reason = why_refused(error, EndReason.PULL_FAILED)
        if reason is EndReason.DISK_FULL:
            hostfacts.tell()  # before an end wakes the scheduler: nothing more is sent here while it is
        for run in _waiting(image):
            _end(run, reason, str(error))
    return False


def _end(run: Run, reason: EndReason, words: str) -> None:
    """STARTING → ENDED, unless a task acts on the run just now: the image may be there after all."""
    with lock(run.pk) as locked:
        if locked and _is_waiting(Run.objects.get(pk=run.pk)):
            end_without_container(run, reason, words)


def _login(image: str) -> dict[str, str] | None:
    """The admin's log-in for the image's registry, opened for this one call."""
    row = RegistryLogin.objects.filter(registry=registry_of(image)).first()
    if row is None:
        return None
    return {"username": row.username, "password": secretbox.open_(row.password_encrypted)}


class _Progress:
    """Writes the bytes so far to each waiting run, about once a second."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.written_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.written_at < WRITE_PERIOD:
            return
        self.written_at = time.monotonic()
        _write(self.image, {"code": "PULLING", "image": self.image, "done_bytes": done, "total_bytes": total})


def _write(image: str, progress: dict[str, object]) -> None:
    for run in _waiting(image):
        if Run.objects.filter(pk=run.pk, state=RunState.STARTING, progress__code__in=PULLING).update(progress=progress):
            announce.job_changed(run.job_id)
