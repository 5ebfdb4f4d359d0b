"""The words that scripts show, in the reader's language; `{name}` places are filled in by the script."""

from django.utils.translation import gettext as _
from django.utils.translation import pgettext


def words() -> dict[str, str]:
    """Script key to sentence."""
    return {**_times(), **_line(), **_log(), **_output(), **_charts(), **_gpus(), **_timeline()}


def _times() -> dict[str, str]:
    return {
        "just now": _("just now"),
        "d": pgettext("unit", "d"),
        "h": pgettext("unit", "h"),
        "min": pgettext("unit", "min"),
        "s": pgettext("unit", "s"),
    }


def _line() -> dict[str, str]:
    return {
        "live": _("live"),
        "connecting": _("connecting…"),
        "refreshing": _("refreshing"),
        "{age} old": _("{age} old"),
        "no news": _("no live news"),
        "offline": _("offline"),
        "signed out": _("signed out"),
        "signed out long": _("You are signed out. Log in again to go on."),
        "reconnecting long": _("The connection is lost. Reconnecting… what you see may be old."),
        "asking long": _(
            "There is no live connection, perhaps because a proxy lets no WebSockets through. "
            "This page asks again every few seconds."
        ),
        "no news long": _("The server hears no live news for now. This page asks again every few seconds."),
        "silent host": _("Not heard of for a while: {hosts}. What is shown of it may be old."),
        "silent hosts": _("Not heard of for a while: {hosts}. What is shown of them may be old."),
        "silent many": _("Not heard of for a while: {hosts} and {count} others. What is shown of them may be old."),
        "copied": _("Copied"),
        "could not copy": _("Could not copy"),
    }


def _log() -> dict[str, str]:
    return {
        "following": _("Following"),
        "paused": _("Paused"),
        "log empty": _("Nothing has been printed yet."),
        "log none": _("This job printed nothing."),
        "log expired": _("This log is kept no longer."),
        "log waiting": _("The log appears here as soon as the job starts."),
        "searching": _("Searching…"),
        "hits": _("Found: {count}"),
        "hits and more": _("The first {count}; there may be more"),
        "no hit": _("Not found in the log."),
        "search stopped": _("Stopped. Found: {count}"),
        "search failed": _("The search failed. Try again."),
        "no such line": _("The log has no such line."),
        "no times": _("No times were recorded for this log."),
        "what place": _("Say a line (1200), a time (14:05:30) or a percentage (50 %)."),
    }


def _charts() -> dict[str, str]:
    return {
        "not reported": _("Not reported by these GPUs: {names}."),
        "throttle power_cap": _("power limit"),
        "throttle heat": _("heat"),
        "throttle power_brake": _("power brake"),
        "throttle hardware": _("hardware"),
        "throttle sync": _("sync boost"),
    }


def _output() -> dict[str, str]:
    return {
        "metric from to": _("{name}: from {first} to {last}"),
        "step at": _("step {step}"),
    }


def _gpus() -> dict[str, str]:
    return {
        "value old": _("{age} old"),
        "no chart": _("no reading"),
        "job": _("job {id}"),
        "GPU": _("GPU"),
        "n/a": _("n/a"),
        "unified": _("shared with the system"),
        "container": _("container {id}"),
        "mig": _("MIG instance: the driver tells no load of it"),
        "slots": _("shared in {count} slots, jobs on it: {jobs}"),
        "ecc": _("uncorrected ECC errors: {count}"),
        "xid": _("Xid {xid}, {ago}"),
        "throttled": _("throttled: {why}"),
        "kept out by": _("In use outside Dockyard by {who}, so no job gets it."),
        "kept out": _("Its memory is in use outside Dockyard, so no job gets it."),
        "sick long": _("It takes no job until it is well."),
        "unsampled long": _("Without a fresh reading it counts as busy."),
        "hidden long": _("Not offered to jobs."),
        "free": _("free"),
        "in use": _("in use"),
        "somebody": _("somebody"),
        "more": _("and {count} more"),
        "busy outside": _("outsider"),
        "a process": _("process"),
        "cordoned": _("closed to new jobs"),
        "gpus used": _("{count} with jobs"),
        "gpus free": _("{count} free"),
        "gpus unknown": _("{count} without a reading"),
        "gpus hidden": _("{count} hidden"),
        "gpus all": _("{count} in all"),
        "health lost": _("lost"),
        "health missing": _("missing"),
        "health error": _("not healthy"),
        "why GPU_HIDDEN": _("hidden"),
        "why GPU_QUARANTINED": _("quarantined"),
        "why DRIVER": _("driver"),
        "why GPU_UNHEALTHY": _("not healthy"),
        "why GPU_UNSAMPLED": _("no fresh reading"),
        "why GPU_BUSY_OUTSIDE": _("outsider"),
    }


def _timeline() -> dict[str, str]:
    return {
        "expected": _("expected to start"),
        "expected row": _("expected"),
        "kept": _("its host is kept for it"),
        "held": _("GPUs held: {percent} %"),
        "from": _("from"),
        "to": _("to"),
        "limit": _("its limit"),
        "likely": _("likely end"),
        "short runs": _("{count} short runs, one close to the other"),
        "click closer": _("Click to look closer"),
    }
