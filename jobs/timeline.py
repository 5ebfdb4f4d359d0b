"""What ran where, what runs until when, what comes next, and which hosts are closed: a window of time, as JSON.

Short windows come as blocks, one a run; where these would be too many, as how much of each host was held. What is to
come is the scheduler's own: limits, how long like jobs ran, the estimates that people are told, the hosts it keeps.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from auditlog.models import LogEntry
from django.db.models import QuerySet

from gpus.models import GPU, Node
from jobs import hostdays, likely, snapshot, wording
from jobs.access import sees
from jobs.gputime import DAY, midnight
from jobs.looks import state_look
from jobs.models import Allocation, HostDay, Job
from jobs.policy.past import Like
from jobs.quotas import WHOLE
from jobs.states import JOB_STATE_AFTER, JobState, RunState
from portal.models import User

MOST_BLOCKS = 3000
MOST_EXPECTED = 200
MOST_CORDONS = 500
BINS = 120
SWEPT = timedelta(days=14)  # longer windows are drawn from closed days
SHORTEST, LONGEST = timedelta(minutes=5), timedelta(days=800)
_COLUMNS = (
    "pk", "node_id", "run_id", "run__job_id", "run__job__name", "user_id", "team_id", "user__username", "gpus",
    "created_at", "released_at", "run__state", "run__end_reason", "run__deadline",
)  # fmt: skip


def picture(user: Any, start: datetime, end: datetime, now: datetime) -> dict[str, Any]:
    """The window [start, end) for this reader. Times in seconds since 1970.

    `hosts`: their GPUs, why they are closed, since when they were. `blocks` (None: too many): `host` and `lanes`, the
    places of its GPUs in that host (none: it has no GPU), `from`, `to` (None: it runs), and while it runs `until` (its
    limit) and `likely` ([early, late]). `bins`: by host, the part of its GPUs that was or will be held, `step` seconds
    apart from `first` on. `expected`: what waits, from its earliest to its latest start. Others' jobs have no name.
    """
    hosts, gpus = list(Node.objects.order_by("name")), _gpus_by_host()
    lanes = _lanes(hosts, gpus)
    inside = hostdays.overlapping(start, end)
    few = inside.values("pk")[: MOST_BLOCKS + 1].count() <= MOST_BLOCKS
    return {
        "now": now.timestamp(), "from": start.timestamp(), "to": end.timestamp(),
        "hosts": [_host(host, gpus[host.pk], now) for host in hosts],
        "cordons": _cordons(hosts, start, end),
        "blocks": _blocks(inside, hosts, lanes, user, now) if few else None,
        **({} if few else _bins({host.pk: len(gpus[host.pk]) for host in hosts}, start, end, now)),
        "expected": _expected(user, hosts, start, end),
        "looks": {state: {"label": (look := state_look(state)).label, "tone": look.tone} for state in JobState},
    }  # fmt: skip


def window_of(job: Job, now: datetime) -> tuple[datetime, datetime]:
    """A window that shows the job, with some time around it: its last run, or when it should start."""
    held = Allocation.objects.filter(run__job=job).order_by("-pk").first()
    if held is not None:
        start, end = held.created_at, held.released_at or now
    else:
        start, end = now, job.expected_latest or now
    around = max((end - start) / 2, timedelta(minutes=30))
    return start - around, end + around


# --- hosts ---

Lanes = dict[int, tuple[int, int]]  # GPU primary key → place of its host, place in it


class _Gpu(NamedTuple):
    host: int  # primary key, as `pk`
    number: int  # its index in the host
    pk: int
    model: str
    profile: str


def _gpus_by_host() -> Mapping[int, list[_Gpu]]:
    """Those that are not split into others, in their order. As rows: there may be thousands."""
    shown = GPU.objects.exclude(health=GPU.Health.SPLIT).order_by("index", "pk")
    found: dict[int, list[_Gpu]] = defaultdict(list)
    for row in shown.values_list("node_id", "index", "pk", "model", "profile"):
        found[row[0]].append(_Gpu(*row))
    return found


def _lanes(hosts: Iterable[Node], gpus: Mapping[int, list[_Gpu]]) -> Lanes:
    return {gpu.pk: (at, lane) for at, host in enumerate(hosts) for lane, gpu in enumerate(gpus[host.pk])}


def _host(host: Node, gpus: Iterable[_Gpu], now: datetime) -> dict[str, Any]:
    why = snapshot.why_closed(host, now)
    return {
        "name": host.name, "closed": wording.wait_reason(why) if why else "",
        "gpus": [{"index": gpu.number, "model": gpu.model, "profile": gpu.profile} for gpu in gpus],
    }  # fmt: skip


def _cordons(hosts: list[Node], start: datetime, end: datetime) -> list[dict[str, Any]]:
    """When hosts were closed by an administrator, by the audit log; one that is closed still has no `to`."""
    log = LogEntry.objects.get_for_model(Node).filter(timestamp__lt=end, changes__has_key="cordoned")
    rows = log.order_by("-timestamp").values_list("object_id", "timestamp", "changes")[:MOST_CORDONS]
    by_host: dict[int, list[tuple[datetime, bool]]] = defaultdict(list)
    for pk, at, changes in reversed(rows):
        by_host[pk].append((at, changes["cordoned"][1] == "True"))
    found = []
    for place, host in enumerate(hosts):
        spans = _spans(by_host[host.pk], host.cordoned)
        found += [
            {"host": place, "from": since and since.timestamp(), "to": until and until.timestamp(),
             "why": host.cordon_reason if until is None else ""}
            for since, until in spans if until is None or until > start
        ]  # fmt: skip
    return found


def _spans(changes: list[tuple[datetime, bool]], closed: bool) -> list[tuple[datetime | None, datetime | None]]:
    """From when to when; None: not known since when, or still."""
    found: list[tuple[datetime | None, datetime | None]] = []
    since: datetime | None = None
    for at, closes in changes:
        if closes:
            since = since or at
        elif since is not None:
            found.append((since, at))
            since = None
    return [*found, (since, None)] if closed else found


# --- blocks ---


def _blocks(
    inside: QuerySet[Allocation], hosts: Iterable[Node], lanes: Lanes, user: Any, now: datetime
) -> list[dict[str, Any]]:
    places = {host.pk: at for at, host in enumerate(hosts)}
    rows = [row for row in inside.values_list(*_COLUMNS) if row[1] in places]  # else its host has come just now
    gpus: dict[int, set[int]] = defaultdict(set)
    for pk, gpu in inside.values_list("pk", "slots__gpu_id"):
        gpus[pk].add(gpu)
    ends = _likely_ends(rows, now)
    may_see = sees(user)
    return [_block(row, gpus[row[0]], lanes, places, user, may_see, ends) for row in rows]


def _block(
    row: tuple[Any, ...], gpus: Iterable[int], lanes: Lanes, places: Mapping[int, int], user: Any, may_see: Any,
    ends: Mapping[int, list[float]],
) -> dict[str, Any]:  # fmt: skip
    _pk, node, run, job, name, owner, team, username, count, begun, released, state, reason, deadline = row
    known = {
        "job": job, "host": places[node], "lanes": sorted(lanes[gpu][1] for gpu in gpus if gpu in lanes),
        "from": begun.timestamp(), "to": released and released.timestamp(), "owner": username,
        "name": name if may_see(owner, team) else None, "mine": owner == user.pk, "gpus": count,
        "state": _state(state, reason),
    }  # fmt: skip
    if released is None:
        known |= {"until": deadline and deadline.timestamp(), "likely": ends.get(run)}
    return known


@cache
def _state(run_state: str, reason: str) -> str:
    """How a run stands, or ended, as a job's state: QUEUED where its job went on to wait again."""
    if run_state != RunState.ENDED:
        return str(run_state)
    return str(JOB_STATE_AFTER.get(reason, JobState.FAILED)) if reason else str(JobState.LOST)


def _likely_ends(rows: Iterable[tuple[Any, ...]], now: datetime) -> dict[int, list[float]]:
    """Live run → from when to when it should end, as the scheduler expects it."""
    if all(row[10] is not None for row in rows):
        return {}
    ends = snapshot.likely_ends(now, likely.past())
    return {run: [at.timestamp() for at in span] for run, span in ends.items()}


# --- what is to come ---


_EXPECTED = (
    "pk", "name", "image", "limit_seconds", "gpus", "owner_id", "team_id", "expected_earliest", "expected_latest",
    "kept_node_id", "kept_from",
)  # fmt: skip


def _expected(user: Any, hosts: Iterable[Node], start: datetime, end: datetime) -> list[dict[str, Any]]:
    """What waits and has a date in the window, first to start first.

    Names are read apart: nobody can guess how many jobs have such dates, and PostgreSQL would join for a single one.
    """
    waiting = Job.objects.filter(state=JobState.QUEUED).order_by()
    dated = waiting.filter(expected_earliest__lt=end, expected_latest__gte=start).order_by("expected_earliest", "pk")
    kept = waiting.filter(kept_node__isnull=False, expected_latest=None)
    may_see, past = sees(user), likely.past()
    rows = list(chain(*(jobs.values(*_EXPECTED)[:MOST_EXPECTED] for jobs in (kept, dated))))
    people = User.objects.filter(pk__in={row["owner_id"] for row in rows}).values_list("pk", "username")
    names = _Names(people=dict(people), hosts={host.pk: host.name for host in hosts})
    return [_expectation(row, may_see, past, user, names) for row in rows]


class _Names(NamedTuple):
    """By primary key."""

    people: Mapping[int, str]
    hosts: Mapping[int, str]


def _expectation(job: Mapping[str, Any], may_see: Any, past: Any, user: Any, names: _Names) -> dict[str, Any]:
    owner, earliest, latest = job["owner_id"], job["expected_earliest"], job["expected_latest"]
    lasts = past.seconds(Like(owner, job["image"], job["name"], job["limit_seconds"]))
    return {
        "job": job["pk"], "name": job["name"] if may_see(owner, job["team_id"]) else None,
        "owner": names.people.get(owner, ""), "mine": owner == user.pk, "gpus": job["gpus"],
        "from": earliest and earliest.timestamp(), "to": latest and latest.timestamp(),
        "lasts": lasts[1] if lasts else job["limit_seconds"],
        "kept": names.hosts.get(job["kept_node_id"]), "kept_from": job["kept_from"] and job["kept_from"].timestamp(),
    }  # fmt: skip


# --- bins ---


def _bins(gpus: Mapping[int, int], start: datetime, end: datetime, now: datetime) -> dict[str, Any]:
    """The part of each host's GPUs that was held, in steps. Live runs count to their limits, where they have one.

    `gpus`: how many each host has, by primary key.
    """
    rolled = hostdays.rolled_until() if end - start > SWEPT else None
    swept = start if rolled is None else min(max(rolled, start), end)
    step, first = (end - start) / BINS, start
    sums: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    if swept > start:
        step, first = max(round(step / DAY), 1) * DAY, midnight(start.astimezone(UTC).date())
        rows = HostDay.objects.filter(day__gte=start.astimezone(UTC).date(), day__lt=swept.astimezone(UTC).date())
        number = cache(lambda day: (midnight(day) - first) // step)
        for node, day, seconds in rows.values_list("node_id", "day", "gpu_seconds"):
            sums[node][number(day)] += seconds
    for hold in chain(hostdays.held(swept, min(end, now)), _planned(now, end)):
        _add(sums[hold.node], hold, first, step)
    return {
        "step": step.total_seconds(),
        "first": first.timestamp(),
        "bins": [_shares(sums[host], count, step) for host, count in gpus.items()],
    }


def _planned(now: datetime, end: datetime) -> Iterator[hostdays.Hold]:
    """What live runs hold from now on, as long as their limits let them."""
    live = Allocation.objects.filter(released_at=None, gpu_milli__gt=0, run__deadline__gt=now)
    for node, milli, deadline in live.values_list("node_id", "gpu_milli", "run__deadline"):
        if deadline is not None and end > now:
            yield hostdays.Hold(node, milli, now, min(deadline, end))


def _add(sums: dict[int, float], hold: hostdays.Hold, start: datetime, step: timedelta) -> None:
    at = hold.start
    while at < hold.end:
        number = int((at - start) // step)
        until = min(start + (number + 1) * step, hold.end)
        sums[number] += hold.milli / WHOLE * (until - at).total_seconds()
        at = until


def _shares(sums: Mapping[int, float], gpus: int, step: timedelta) -> dict[int, float]:
    """By number of the step, 0 to 1."""
    whole = gpus * step.total_seconds()
    return {number: round(min(seconds / whole, 1.0), 3) for number, seconds in sorted(sums.items()) if whole}
