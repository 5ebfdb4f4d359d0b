"""Make a run start: PLACED → STARTING → RUNNING, or ENDED with the reason why not.

Runs as an RQ task on the run's node and may be repeated at any point: each step looks first.
"""

import errno
import logging

from django.conf import settings
from django.utils import timezone

from jobs import containers, containers_images, endings, firewall, follow, hostfacts, mounts, secretbox, workspace
from jobs.begin import become_running
from jobs.containerspec import AllocationEmpty, RunFacts, build
from jobs.control import revoke
from jobs.finish import end_without_container
from jobs.models import Job, Run
from jobs.runlock import lock
from jobs.states import EndReason, RunState, reason_for_wish
from portal.logs import know

log = logging.getLogger(__name__)

PULLING = ("PULLING", "PULL_RETRY")  # what `Run.progress` says while `jobs.pull` acts on the run
IMAGE_ERRORS: tuple[tuple[type[Exception], EndReason], ...] = (
    (containers.ImageMissing, EndReason.IMAGE_NOT_FOUND),
    (containers.ImageForbidden, EndReason.IMAGE_AUTH),
    (containers.ImageRateLimited, EndReason.IMAGE_RATE_LIMITED),
)


class CannotStart(Exception):
    """The run can't start: `reason` decides what becomes of the job; str() is the engine's words, or ours."""

    def __init__(self, reason: EndReason, words: str = "") -> None:
        super().__init__(words)
        self.reason = reason


def launch(run_id: int) -> None:
    """Do whatever is still to be done until the run is RUNNING. A missing or ended run is dropped quietly."""
    with lock(run_id) as locked:
        found = Run.objects.select_related("job__owner", "job__team", "node")
        run = found.defer("job__owner__password").filter(pk=run_id).first()  # closed to hosts
        if not locked or run is None or run.node.name != settings.NODE_NAME:
            return
        know(job=run.job_id)
        try:
            is_first = run.state == RunState.PLACED
            if _enter_starting(run) and not _heed_wish(run):
                _try_to_start(run, is_first=is_first)
        except (containers.EngineUnavailable, containers.EngineRefused) as error:
            log.warning("run %d: the engine did not do as asked, to be tried again: %s", run_id, error)


def give_up(run: Run) -> bool:
    """PLACED or STARTING → ENDED for START_TIMEOUT, unless somebody acts on the run, or something of it runs after all.

    Raises EngineUnavailable.
    """
    with lock(run.pk) as locked:
        if not locked:
            return False
        return revoke(run, EndReason.START_TIMEOUT) or _end_unstarted(run, EndReason.START_TIMEOUT, "")


def _enter_starting(run: Run) -> bool:
    """PLACED → STARTING. True when the run is STARTING, also from an earlier try."""
    if run.state == RunState.PLACED:
        owner = run.job.owner
        return run.advance(
            RunState.PLACED, RunState.STARTING, starting_at=timezone.now(), engine_id=run.node.engine_id,
            uid=owner.run_uid, gid=owner.run_gid, progress={"code": "CREATING"},
        )  # fmt: skip
    return run.state == RunState.STARTING


def _heed_wish(run: Run) -> bool:
    """End a run that somebody wished away before its container started. True when nothing is left to be started."""
    run.refresh_from_db(fields=["wish", "wish_by", "state"])
    wished = run.wished
    if wished is None or run.state != RunState.STARTING:
        return run.state != RunState.STARTING
    by_owner = run.wish_by_id == run.job.owner_id
    return _end_unstarted(run, reason_for_wish(wished, by_owner=by_owner), "")


def _end_unstarted(run: Run, reason: EndReason, words: str) -> bool:
    """STARTING → ENDED, once nothing of it is left here. False when its container has been started after all.

    That happens when the engine did what it was asked to, and we did not hear its answer.
    """
    container = containers.of_run(run.container_name, run.pk)
    if container is not None:
        if container.status != "created":
            return False
        containers.remove(container.id)
    end_without_container(run, reason, words)
    return True


def _try_to_start(run: Run, *, is_first: bool) -> None:
    begun = timezone.now()
    existing = None if is_first else containers.of_run(run.container_name, run.pk)
    try:
        _start(run, existing)
    except CannotStart as error:
        if isinstance(error.__cause__, containers.EngineRefused):
            containers.confirm(begun)  # else it is tried again: what an engine that goes down refuses is no job's fault
            if existing is not None:
                _make_way_for_another(run, existing, error)
        _tell_why_not(error)
        _end_unstarted(run, error.reason, str(error))


def _tell_why_not(error: CannotStart) -> None:
    """Look at the host before the run's end wakes the scheduler: nothing more is sent here while it is unfit."""
    if error.reason is EndReason.DISK_FULL:
        hostfacts.tell()
    elif error.reason is EndReason.GPU_START_FAILED and endings.is_host_trouble(str(error)):
        hostfacts.tell_if_unfit()


def _make_way_for_another(run: Run, existing: containers.Container, error: CannotStart) -> None:
    """Remove what an earlier try has left, and raise EngineUnavailable, so that all is tried again.

    An engine that died as it made the container may have left it half made: that it can't be started proves nothing.
    """
    containers.remove(existing.id)
    Run.objects.filter(pk=run.pk).update(exit_code=None, container_id="")
    raise containers.EngineUnavailable(f"a container of an earlier try can't be started: {error}") from error


def _start(run: Run, existing: containers.Container | None) -> None:
    """Create, attach, start, as far as that is still to be done. `existing` is what an earlier try has left."""
    if existing is None or existing.status == "created":
        container_id = existing.id if existing else _create(run)
        if container_id is None:
            return
        follow.request_attach(run.pk, container_id, timeout=settings.ATTACH_TIMEOUT)
        if _heed_wish(run):
            return
        # Before it has a process: one whose start we do not live to note down would be an outsider on its own GPUs.
        Run.objects.filter(pk=run.pk).update(container_id=container_id)
        _start_container(run, container_id)
        existing = containers.inspect(container_id)
    if existing is not None:
        become_running(run, existing)


def _create(run: Run) -> str | None:
    """The id of the run's container; None while the agent pulls the image, after which this task comes again."""
    image = containers_images.image(run.job.image)
    if image is None:
        Run.objects.filter(pk=run.pk, state=RunState.STARTING).exclude(progress__code="PULL_RETRY").update(
            progress={"code": "PULLING", "image": run.job.image}
        )
        return None
    if run.progress.get("code") in PULLING:  # from here on the time of a start counts
        run.progress = {"code": "CREATING", "since": timezone.now().isoformat()}
        Run.objects.filter(pk=run.pk, state=RunState.STARTING).update(progress=run.progress)
    try:
        workspace.prepare(run.job, uid=run.uid or 0, gid=run.gid or 0)
        config = build(_facts(run, image))
        return containers.create(run.container_name, config)
    except AllocationEmpty as error:
        raise CannotStart(EndReason.CREATE_FAILED, f"ALLOCATION_EMPTY: {error}") from error
    except (mounts.Refused, secretbox.Unreadable, OSError) as error:
        raise CannotStart(_why_not_prepared(error), str(error)) from error
    except containers.EngineRefused as error:
        raise CannotStart(_why_no_create(error, has_gpus=run.job.gpus > 0), str(error)) from error


def _why_not_prepared(error: Exception) -> EndReason:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return EndReason.DISK_FULL if full else EndReason.CREATE_FAILED


def _why_no_create(error: containers.EngineRefused, *, has_gpus: bool) -> EndReason:
    if has_gpus and endings.is_gpu_trouble(str(error)):
        return EndReason.GPU_START_FAILED
    if "no command specified" in str(error).lower():  # neither in the request nor in the image
        return EndReason.COMMAND_NOT_FOUND
    return why_refused(error, EndReason.CREATE_FAILED)


def why_refused(error: containers.EngineRefused, otherwise: EndReason) -> EndReason:
    """What an engine's refusal to bring an image, or to make a container of it, says; `otherwise` where nothing."""
    for kind, reason in IMAGE_ERRORS:
        if isinstance(error, kind):
            return reason
    return EndReason.DISK_FULL if "no space left" in str(error) else otherwise


def _facts(run: Run, image: containers_images.Image) -> RunFacts:
    job = run.job
    return RunFacts(
        installation=settings.INSTALLATION, job=job.pk, run=run.pk, attempt=run.number, image=job.image,
        image_variables=frozenset(image.environment), image_working_dir=image.working_dir,
        command_kind=job.command_kind, script=job.script, entrypoint=tuple(job.entrypoint),
        arguments=tuple(job.arguments), environment=_environment(job), gpus_asked=run.allocation.gpus,
        gpu_uuids=tuple(run.gpu_uuids), gpu_milli=job.gpu_milli, stop_signal=job.stop_signal,
        injection=settings.GPU_INJECTION, uid=run.uid or 0, gid=run.gid or 0,
        millicpus=job.millicpus, memory_mib=job.memory_mib, shm_mib=job.shm_mib, pids=settings.PIDS_LIMIT,
        workspace=str(workspace.of_user(job.owner_id)), binds=mounts.binds(job),
        network=firewall.network_of(job),
        log_limit_bytes=settings.LOG_LIMIT_BYTES,
    )  # fmt: skip


def _environment(job: Job) -> dict[str, str]:
    opened = {name: secretbox.open_(token) for name, token in job.secrets_encrypted.items()}
    return {**job.environment, **opened}


def _start_container(run: Run, container_id: str) -> None:
    try:
        containers.start(container_id)
    except containers.EngineRefused as error:
        left = containers.inspect(container_id)
        code = left.exit_code if left else None
        Run.objects.filter(pk=run.pk).update(exit_code=code, container_id=container_id)
        reason = endings.of_failed_start(str(error), code, has_gpus=run.job.gpus > 0)
        raise CannotStart(reason, str(error)) from error
