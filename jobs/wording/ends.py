"""Why a job ended, in a word and in a sentence, and what to try next."""

import signal
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from jobs import blame, lastwords
from jobs.models import Job, Run
from jobs.states import EndReason
from jobs.units import exact_duration, format_memory
from jobs.wording import quantities as q
from jobs.wording.lookup import Params, Table, say

SIGBUS = int(signal.SIGBUS)
GOES_ON = (EndReason.COMPLETED, EndReason.EXIT_CODE)  # ends of a command that may have lost a child to the OOM killer


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What would probably help: a sentence, and the form fields to change when the job is cloned."""

    text: str
    changes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def end_sentence(job: Job, run: Run | None) -> str:
    """Why the job, or the given run of it, ended."""
    reason = (run.end_reason if run is not None else "") or job.end_reason
    if not reason:
        return _("It ended.")
    facts = _facts(job, run)
    said = say(ENDS, reason, facts)
    if not facts["oom_killed"] or reason not in GOES_ON:
        return said
    return f"{said} {_('One of its processes was killed for lack of memory.')}"


def end_label(reason: str, *, gpus: int | None = None) -> str:
    """A reason to end in two or three words, for chips and tables. `gpus`: how many it was to go on with instead."""
    return say(LABELS, str(reason), {"gpus": gpus})


def run_label(run: Run) -> str:
    """Why the run ended, as `end_label`; empty while it lives."""
    return end_label(run.end_reason, gpus=_resized_to(run)) if run.end_reason else ""


def _resized_to(run: Run | None) -> int | None:
    return run.resized_to if run is not None and run.end_reason == EndReason.REBOUND else None


def suggestion(job: Job, run: Run | None) -> Suggestion | None:
    """What to try next; None where there is nothing to advise."""
    reason = (run.end_reason if run is not None else "") or job.end_reason
    advise = ADVICE.get(reason)
    return advise(_facts(job, run)) if advise else None


def _facts(job: Job, run: Run | None) -> dict[str, Any]:
    code = run.exit_code if run is not None and run.exit_code is not None else job.exit_code
    return {
        "exit_code": code,
        "signal": code - 128 if code is not None and 128 < code < 160 else None,
        "image": job.image,
        "memory_mib": job.memory_mib,
        "shm_mib": job.shm_mib,
        "limit_seconds": job.limit_seconds,
        "grace_seconds": job.grace_seconds,
        **_command(job, run.engine_message if run is not None else ""),
        "node": run.node.name if run is not None else _("its host"),
        "who": run.wish_by.username if run is not None and run.wish_by is not None else "",
        "gpus": job.gpus,
        "may_start_again": blame.may_start_again(job),
        "oom_killed": bool(run is not None and run.oom_killed),
        "winner": run.makes_way_for_id if run is not None else None,
        "resized_to": _resized_to(run) if job.least_gpus is not None else None,
    }


def _command(job: Job, words: str) -> dict[str, Any]:
    """The command that could not be run, empty where none was given; and whether a shell inside the job says so."""
    given = "/bin/sh" if job.command_kind == "script" else next(iter([*job.entrypoint, *job.arguments]), "")
    return {"command": lastwords.command_in(words) or given, "by_shell": lastwords.said_by_shell(words)}


def _exit_code(p: Params) -> str:
    if p["exit_code"] is None:
        return _("The command failed.")
    if p["exit_code"] == lastwords.NOT_FOUND:
        return _("The command failed with exit code 127, by which shells say that they did not find a command.")
    if p["exit_code"] == lastwords.NOT_EXECUTABLE:
        return _("The command failed with exit code 126, by which shells say that a command could not be executed.")
    if p["signal"] is None:
        return _("The command failed with exit code %(exit_code)d.") % p
    if p["signal"] == signal.SIGKILL:
        return _("The command was ended by SIGKILL (exit code 137), which Dockyard did not send.")
    return _("The command was ended by %(name)s (exit code %(exit_code)d).") % {**p, "name": _signal_name(p["signal"])}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return _("signal %(number)d") % {"number": number}


def _command_not_found(p: Params) -> str:
    if not p["command"]:
        return _("The image has no command of its own: give one.")
    if p["by_shell"]:
        return _("The shell did not find the command %(command)s.") % p
    return _("The image has no command %(command)s.") % p


def _time_limit(p: Params) -> str:
    if p["limit_seconds"] is None:
        return _("It was stopped at its time limit.")
    return _("It was stopped at its time limit of %(limit)s.") % {"limit": q.duration(p["limit_seconds"])}


def _killed_externally(p: Params) -> str:
    if p["exit_code"] is None:
        return _("Its container was removed from %(node)s, and its exit code is lost with it.") % p
    return _("Its container was stopped on %(node)s by somebody outside Dockyard.") % p


def _stopped(p: Params) -> str:
    return _("Cancelled by %(who)s.") % p if p["who"] else _("Cancelled by its owner.")


def _stopped_by_admin(p: Params) -> str:
    return _("Stopped by %(who)s, who is not its owner.") % p if p["who"] else _("Stopped by an administrator.")


def _preempted(p: Params) -> str:
    if p["winner"] is None:
        return _("It made room for a job that goes before it, and waits at its old place to run again.")
    return _("It made room for job #%(winner)s, and waits at its old place to run again.") % p


def _rebound(p: Params) -> str:
    if p["winner"] is not None:
        return _("It was stopped to make room for job #%(winner)s, and goes on with other GPUs.") % p
    if p["resized_to"]:
        words = {**p, "gpus": q.gpus(p["resized_to"])}
        if p["who"]:
            return _("It was stopped by %(who)s in order to go on with %(gpus)s.") % words
        return _("It was stopped in order to go on with %(gpus)s.") % words
    if p["who"]:
        return _("It was stopped by %(who)s in order to go on with other GPUs.") % p
    return _("It was stopped in order to go on with other GPUs.")


ENDS: Table = {
    EndReason.COMPLETED: lambda p: _("The command ended with exit code 0."),
    EndReason.EXIT_CODE: _exit_code,
    EndReason.PREEMPTED: _preempted,
    EndReason.REBOUND: _rebound,
    EndReason.START_TIMEOUT: lambda p: _("%(node)s did not begin with it in time; it was given back to the queue.") % p,
    EndReason.PULL_FAILED: lambda p: _("%(node)s could not fetch the image %(image)s.") % p,
    EndReason.CREATE_FAILED: lambda p: _("%(node)s could not make the container.") % p,
    EndReason.DEPENDENCY_FAILED: lambda p: _("A job that it depends on failed."),
    EndReason.OOM_KILLED: lambda p: (
        _("It was killed because it needed more than its %(memory)s of memory.") % {"memory": q.memory(p["memory_mib"])}
    ),
    EndReason.CUDA_OOM: lambda p: _("The memory of its GPU was not enough."),
    EndReason.TIME_LIMIT: _time_limit,
    EndReason.STOPPED_BY_USER: _stopped,
    EndReason.STOPPED_BY_ADMIN: _stopped_by_admin,
    EndReason.SHUT_DOWN: lambda p: _("It was stopped because Dockyard on %(node)s was shut down.") % p,
    EndReason.IDLE_RECLAIMED: lambda p: _("It was stopped because its GPUs were idle for too long."),
    EndReason.IMAGE_NOT_FOUND: lambda p: _("There is no image %(image)s, or it is private.") % p,
    EndReason.IMAGE_AUTH: lambda p: _("The registry refused to hand out the image %(image)s: a log-in is needed.") % p,
    EndReason.IMAGE_RATE_LIMITED: lambda p: (
        _("The registry allows no more downloads for now, so the image %(image)s could not be fetched.") % p
    ),
    EndReason.COMMAND_NOT_FOUND: _command_not_found,
    EndReason.COMMAND_NOT_EXECUTABLE: lambda p: (
        _("The command %(command)s is there but cannot be executed.") % p
        if p["command"]
        else _("The image's own command is there but cannot be executed.")
    ),
    EndReason.ARCHITECTURE: lambda p: _("The image %(image)s is built for another kind of processor.") % p,
    EndReason.GPU_LOST: lambda p: _("Its GPU was lost by the driver of %(node)s while it ran.") % p,
    EndReason.GPU_ACCESS_LOST: lambda p: (
        _("Its container lost access to its GPUs, as happens when %(node)s reloads its system services.") % p
    ),
    EndReason.GPU_FAULT: lambda p: _("Its GPU on %(node)s failed: the program met a fault of the hardware.") % p,
    EndReason.GPU_START_FAILED: lambda p: _("%(node)s could not hand its GPU to the container.") % p,
    EndReason.DISK_FULL: lambda p: _("The disk of %(node)s was full.") % p,
    EndReason.DISK_LIMIT: lambda p: _("It was stopped because it filled more of the disk than jobs may."),
    EndReason.LOG_LIMIT: lambda p: _("It was stopped because its log grew beyond the limit."),
    EndReason.KILLED_EXTERNALLY: _killed_externally,
    EndReason.HOST_DAEMON_RESTART: lambda p: _("It ended because the Docker engine of %(node)s was restarted.") % p,
    EndReason.HOST_REBOOT: lambda p: _("It ended because %(node)s was rebooted.") % p,
    EndReason.HOST_LOST: lambda p: _("%(node)s was not heard of any more, and an administrator gave the job up.") % p,
}

LABELS: Table = {
    EndReason.COMPLETED: lambda p: _("completed"),
    EndReason.EXIT_CODE: lambda p: _("command failed"),
    EndReason.PREEMPTED: lambda p: _("preempted"),
    EndReason.REBOUND: lambda p: (
        _("goes on with %(gpus)s") % {"gpus": q.gpus(p["gpus"])} if p.get("gpus") else _("moved to other GPUs")
    ),
    EndReason.START_TIMEOUT: lambda p: _("start timed out"),
    EndReason.PULL_FAILED: lambda p: _("image not fetched"),
    EndReason.CREATE_FAILED: lambda p: _("container not made"),
    EndReason.DEPENDENCY_FAILED: lambda p: _("dependency failed"),
    EndReason.OOM_KILLED: lambda p: _("out of memory"),
    EndReason.CUDA_OOM: lambda p: _("out of GPU memory"),
    EndReason.TIME_LIMIT: lambda p: _("time limit"),
    EndReason.STOPPED_BY_USER: lambda p: _("cancelled by its owner"),
    EndReason.STOPPED_BY_ADMIN: lambda p: _("stopped by somebody else"),
    EndReason.SHUT_DOWN: lambda p: _("Dockyard was shut down"),
    EndReason.IDLE_RECLAIMED: lambda p: _("stopped as idle"),
    EndReason.IMAGE_NOT_FOUND: lambda p: _("image not found"),
    EndReason.IMAGE_AUTH: lambda p: _("image needs a log-in"),
    EndReason.IMAGE_RATE_LIMITED: lambda p: _("registry limit"),
    EndReason.COMMAND_NOT_FOUND: lambda p: _("command not found"),
    EndReason.COMMAND_NOT_EXECUTABLE: lambda p: _("command not executable"),
    EndReason.ARCHITECTURE: lambda p: _("wrong processor"),
    EndReason.GPU_LOST: lambda p: _("GPU lost"),
    EndReason.GPU_ACCESS_LOST: lambda p: _("GPU access lost"),
    EndReason.GPU_FAULT: lambda p: _("GPU fault"),
    EndReason.GPU_START_FAILED: lambda p: _("GPU start failed"),
    EndReason.DISK_FULL: lambda p: _("disk full"),
    EndReason.DISK_LIMIT: lambda p: _("too much on the disk"),
    EndReason.LOG_LIMIT: lambda p: _("log limit"),
    EndReason.KILLED_EXTERNALLY: lambda p: _("killed from outside"),
    EndReason.HOST_DAEMON_RESTART: lambda p: _("engine restarted"),
    EndReason.HOST_REBOOT: lambda p: _("host rebooted"),
    EndReason.HOST_LOST: lambda p: _("host lost"),
}


def _more_memory(p: Params) -> Suggestion:
    most = format_memory(_half_more(p["memory_mib"]))
    return Suggestion(
        text=_("Raise memory to %(memory)s and resubmit.") % {"memory": most}, changes={"memory": most}
    )  # fmt: skip


def _half_more(mib: int) -> int:
    """Half as much again, in whole GiB (in whole 256 MiB for small jobs)."""
    step = 1024 if mib >= 2048 else 256
    return -(-mib * 3 // 2 // step) * step


def _more_time(p: Params) -> Suggestion | None:
    if p["limit_seconds"] is None:
        return None
    twice = p["limit_seconds"] * 2
    text = _("Raise the time limit to %(limit)s, or save checkpoints and go on from the last one.")
    return Suggestion(text=text % {"limit": q.duration(twice)}, changes={"limit": exact_duration(twice)})


def _after_exit(p: Params) -> Suggestion | None:
    if p["exit_code"] == lastwords.NOT_FOUND:
        return _advice(_("Check the spelling of its commands, and whether the image has them."))
    if p["exit_code"] == lastwords.NOT_EXECUTABLE:
        return _advice(_("Make the file executable (chmod +x), or run it by its interpreter, such as sh FILE."))
    if p["oom_killed"]:
        return _more_memory(p)
    if p["signal"] != SIGBUS:
        return None
    most = format_memory(max(_half_more(p["shm_mib"]), p["shm_mib"] * 2))
    text = _("Programs that share data between processes often need more shared memory: raise it to %(shm)s.")
    return Suggestion(text=text % {"shm": most}, changes={"shm": most})


def _advice(text: str) -> Suggestion:
    return Suggestion(text=text)


def _hardware(p: Params, text: str) -> Suggestion:
    """Nobody's program is run twice unless its owner says that it may be; who did not say so hears how."""
    if p["may_start_again"]:
        return _advice(text)
    more = _("A job that may be stopped and started again is tried once more by itself, on other hardware.")
    return _advice(f"{text} {more}")


def _after_not_found(p: Params) -> Suggestion:
    if not p["command"]:
        return _advice(_("Choose a script, or say the entry point or the arguments to run."))
    if p["by_shell"]:
        return _advice(_("Check its spelling, and whether the image has it, or what its first line names after #!."))
    return _advice(_("Check the spelling of the command; a script needs an image with /bin/sh."))


def _after_not_executable(p: Params) -> Suggestion:
    if p["by_shell"]:
        return _advice(_("Make the file executable (chmod +x), or run it by its interpreter, such as sh FILE."))
    return _advice(_("Make the file executable (chmod +x) when building."))


ADVICE: dict[str, Any] = {
    EndReason.COMPLETED: lambda p: _more_memory(p) if p["oom_killed"] else None,
    EndReason.EXIT_CODE: _after_exit,
    EndReason.OOM_KILLED: _more_memory,
    EndReason.CUDA_OOM: lambda p: _advice(_("Use smaller batches, or ask for a GPU with more memory.")),
    EndReason.TIME_LIMIT: _more_time,
    EndReason.PULL_FAILED: lambda p: _advice(_("Try again; if it persists, an administrator can look at the host.")),
    EndReason.CREATE_FAILED: lambda p: _advice(_("The details tell what the engine refused.")),
    EndReason.SHUT_DOWN: lambda p: _advice(_("Submit it again.")),
    EndReason.IDLE_RECLAIMED: lambda p: _advice(_("Ask for GPUs only when the job computes on them.")),
    EndReason.IMAGE_NOT_FOUND: lambda p: _advice(_("Check the spelling of name and tag.")),
    EndReason.IMAGE_AUTH: lambda p: _advice(_("Ask an administrator to add a log-in for this registry.")),
    EndReason.IMAGE_RATE_LIMITED: lambda p: _advice(
        _("Try again later, or ask an administrator to add a log-in for this registry.")
    ),
    EndReason.COMMAND_NOT_FOUND: _after_not_found,
    EndReason.COMMAND_NOT_EXECUTABLE: _after_not_executable,
    EndReason.ARCHITECTURE: lambda p: _advice(_("Use an image for the processor of the host.")),
    EndReason.GPU_LOST: lambda p: _hardware(p, _("Resubmit it: the lost GPU takes no jobs until it is back.")),
    EndReason.GPU_FAULT: lambda p: _hardware(
        p, _("Resubmit it; if it fails on that GPU again, tell an administrator.")
    ),
    EndReason.GPU_START_FAILED: lambda p: _advice(_("Resubmit it; an administrator can look at the host.")),
    EndReason.GPU_ACCESS_LOST: lambda p: _advice(
        _("Resubmit it, and tell an admin: “manage.py doctor” on that host says how to keep it from happening.")
    ),
    EndReason.DISK_FULL: lambda p: _advice(_("Delete what you no longer need, or tell an administrator.")),
    EndReason.DISK_LIMIT: lambda p: _advice(_("Delete what you no longer need: a job that only deletes may run.")),
    EndReason.LOG_LIMIT: lambda p: _advice(_("Print less, or write into a file of your workspace.")),
    EndReason.HOST_DAEMON_RESTART: lambda p: _hardware(p, _("Resubmit it.")),
    EndReason.HOST_REBOOT: lambda p: _hardware(p, _("Resubmit it.")),
    EndReason.HOST_LOST: lambda p: _hardware(p, _("Resubmit it.")),
    EndReason.KILLED_EXTERNALLY: lambda p: _advice(_("Resubmit it, or ask an administrator who stopped it.")),
}
