"""`manage.py replay TRACE`: play a trace through the scheduler's own policy, and print what came of it."""

import dataclasses
import json
import re
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import replays, wording
from jobs.models import Cluster
from jobs.policy.meters import Report, Waits
from jobs.policy.offer import Offered, offer
from jobs.policy.replay import Setup, replay
from jobs.policy.trace import BadTrace, Trace, host, read_nodes, read_trace
from jobs.policy.view import Node, Reason, Snapshot

T = TypeVar("T")
MOST_ROWS = 20


class Command(BaseCommand):
    help = (
        "Play a trace (CSV: submitted, seconds, limit, gpus, user, team, …, see jobs/policy/trace.py; or openb's "
        "columns) through the scheduler's own policy, and print waits, makespan, use of the GPUs and fragmentation."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("trace", help="a CSV file of jobs")
        hosts = parser.add_mutually_exclusive_group()
        hosts.add_argument("--nodes", help="a CSV file of hosts: sn, cpu_milli, memory_mib, gpu, model")
        hosts.add_argument("--hosts", help="so many hosts of so many GPUs, such as 8x8; else this installation's own")
        parser.add_argument("--placement-only", action="store_true", help="no job ends; what does not fit is dropped")
        parser.add_argument("--tick", type=float, default=1.0, help="events within so many seconds share a pass")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        timed = not options["placement_only"]
        trace = _read(options["trace"], lambda lines: read_trace(lines, timed=timed))
        if not trace.tasks:
            raise CommandError(_("%(file)s holds no job.") % {"file": options["trace"]})
        begun = time.perf_counter()
        found = self._play(trace, _picture(options), options)
        took = time.perf_counter() - begun
        if options["json"]:
            self.stdout.write(json.dumps({**_as_json(found, trace), "seconds": round(took, 3)}))
        else:
            self.stdout.write("\n".join([*_table(found, trace), "", _("Worked out in %(n).1f s.") % {"n": took}]))

    def _play(self, trace: Trace, picture: Snapshot, options: Mapping[str, Any]) -> Report | Offered:
        progress = _bar(self.stderr) if sys.stderr.isatty() else None
        if options["placement_only"]:
            return offer([task.job for task in trace.tasks], picture, progress=progress)
        shared = replays.with_equal_shares(picture, trace.tasks)
        return replay(trace.tasks, Setup(picture=shared, tick=options["tick"]), progress=progress)


def _bar(out: Any) -> Callable[[float], None]:
    """Tell progress by the percent, to people alone."""
    told = -1

    def tell(part: float) -> None:
        nonlocal told
        if int(part * 100) > told:
            told = int(part * 100)
            out.write(f"\r{told} %", ending="" if told < 100 else "\n")

    return tell


def _picture(options: Mapping[str, Any]) -> Snapshot:
    """Hosts that are named, under the rules of a new installation; else this one's own, under its rules."""
    if options["nodes"]:
        return replays.picture(tuple(_read(options["nodes"], read_nodes)), Cluster())
    if options["hosts"]:
        return replays.picture(_alike(options["hosts"]), Cluster())
    own = replays.own_nodes(timezone.now())
    if not own:
        raise CommandError(_("There are no hosts here yet: name some by --nodes or --hosts."))
    return replays.picture(own, Cluster.get())


def _alike(text: str) -> tuple[Node, ...]:
    found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,2})", text)
    if found is None:
        raise CommandError(_("--hosts takes two numbers, such as 8x8, not “%(text)s”.") % {"text": text})
    count, gpus = int(found[1]), int(found[2])
    return tuple(host(f"host-{n:05}", gpus=gpus, millicpus=gpus * 16_000, ram=gpus * 131_072) for n in range(count))


def _read(name: str, read: Callable[[Any], T]) -> T:
    try:
        with Path(name).open(encoding="utf-8", newline="") as lines:
            return read(lines)
    except OSError as error:
        raise CommandError(_("%(file)s cannot be read: %(why)s") % {"file": name, "why": error.strerror}) from None
    except BadTrace as bad:
        raise CommandError(f"{name}: {_sentence(bad)}") from None


def _sentence(bad: BadTrace) -> str:
    where = {"line": bad.line, "column": bad.column, "value": bad.value[:60]}
    said = {
        "EMPTY": _("the file is empty: its first line must name the columns."),
        "NO_COLUMN": _("there is no column “%(column)s”."),
        "NO_NAME": _("line %(line)d, column %(column)s: the host has no name."),
        "NOT_A_NUMBER": _("line %(line)d, column %(column)s: “%(value)s” is no number that could stand here."),
        "TOO_SMALL": _("line %(line)d, column %(column)s: %(value)s is too small."),
        "NOT_A_TIME": _("line %(line)d, column %(column)s: “%(value)s” is no time: seconds, or 2026-11-30T14:00:00."),
        "TWICE": _("line %(line)d, column %(column)s: “%(value)s” is there twice."),
        "TOO_MANY_CELLS": _("line %(line)d has more cells than there are columns."),
        "NOT_TEXT": _("line %(line)d is no CSV text in UTF-8."),
    }
    return said[bad.code] % where


# --- what is printed ---


def _as_json(found: Report | Offered, trace: Trace) -> dict[str, Any]:
    values = dataclasses.asdict(found)
    names = _names(trace)
    values["never"] = [
        {"job": job, "name": names[job], "reason": reason, "message": wording.wait_reason(reason, reader="")}
        for job, reason in found.never
    ]
    if isinstance(found, Report):
        values["by_user"] = {trace.users.get(pk, str(pk)): waits for pk, waits in values["by_user"].items()}
        values["by_team"] = {trace.teams.get(pk, str(pk)): waits for pk, waits in values["by_team"].items()}
        values["mean_fragmentation"] = found.mean_fragmentation
    return values


def _table(found: Report | Offered, trace: Trace) -> list[str]:
    if isinstance(found, Offered):
        placed = _lines([
            (_("Jobs"), f"{found.placed} / {found.tasks}"), (_("GPUs"), f"{found.gpus:g}"),
            (_("Asked for"), _percent(found.asked)), (_("Allocated"), _percent(found.allocated)),
            (_("Fragmented"), _percent(found.fragmentation)),
        ])  # fmt: skip
        return [*placed, *_first(_("Jobs that were dropped"), found.never, len(found.dropped), _names(trace))]
    facts = _lines([
        (_("Jobs"), _("%(tasks)d: %(started)d started, %(ended)d ended") % dataclasses.asdict(found)),
        (_("Makespan"), wording.duration(found.makespan)), (_("GPUs"), f"{found.gpus:g}"),
        (_("Utilisation"), _percent(found.utilisation)), (_("Fragmented"), _percent(found.mean_fragmentation)),
        (_("Preempted"), str(found.preemptions)), (_("Moved"), str(found.moves)), (_("Passes"), str(found.passes)),
    ])  # fmt: skip
    everybody = _waits_table(_("Waits"), [(_("everybody"), found.waits)])
    teams = _waits_table(_("By team"), _most_waiting(found.by_team, trace.teams))
    users = _waits_table(_("By user"), _most_waiting(found.by_user, trace.users))
    never = _first(_("Jobs that could never start"), found.never, found.tasks - found.started, _names(trace))
    return [*facts, *never, "", *everybody, *(["", *teams] if len(found.by_team) > 1 else []),
            *(["", *users] if len(found.by_user) > 1 else [])]  # fmt: skip


def _first(title: str, found: Sequence[tuple[int, Reason]], count: int, names: Mapping[int, str]) -> list[str]:
    """The first of `count` jobs, with what was in the way of each."""
    more = count - len(found)
    said = [f"  #{job} {names[job]}".rstrip() + f": {wording.wait_reason(reason, reader='')}" for job, reason in found]
    if not said:
        return []
    text = ngettext("and %(more)d more", "and %(more)d more", more)
    return ["", title, *said, *([f"  {text % {'more': more}}"] if more else [])]


def _names(trace: Trace) -> dict[int, str]:
    return {task.job.id: task.name for task in trace.tasks}


def _most_waiting(by: Mapping[int, Waits], names: Mapping[int, str]) -> list[tuple[str, Waits]]:
    order = sorted(by, key=lambda pk: (-(by[pk].mean or 0), pk))
    return [(names.get(pk, str(pk)), by[pk]) for pk in order[:MOST_ROWS]]


def _waits_table(title: str, rows: list[tuple[str, Waits]]) -> list[str]:
    head = f"{title:<24}{_('jobs'):>8}{_('mean'):>14}{'p50':>14}{'p90':>14}"
    return [head, *(f"{name[:23]:<24}{waits.jobs:>8}" + "".join(
        f"{_seconds(value):>14}" for value in (waits.mean, waits.p50, waits.p90)) for name, waits in rows)]  # fmt: skip


def _lines(rows: list[tuple[str, str]]) -> list[str]:
    return [f"{name:<24}{value}" for name, value in rows]


def _seconds(value: float | None) -> str:
    return "–" if value is None else wording.duration(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"
