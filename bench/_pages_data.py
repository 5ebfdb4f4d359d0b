"""A lab's last year in a database, by bulk SQL: ended jobs, running and waiting ones, and what each left behind.

The rows are made by the database from a series of numbers, so that a million take a minute or two. Columns that are
not told have the model's own default. The same on PostgreSQL and SQLite.
"""

import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.hashers import make_password
from django.db import connection
from django.db.models import Field, JSONField, Model
from django.utils import timezone

from gpus import simulated
from gpus.models import GPU, Node
from gpus.record import Recorder
from jobs import dispatch, gputime, hostdays
from jobs.models import Allocation, AllocationSlot, Job, JobEvent, Membership, Run, Team, UsageDay
from portal.models import User

HOSTS, GPUS_A_HOST = 50, 8
RUNNING, WAITING = 200, 1000
USERS, TEAMS = 200, 20
YEAR = 365 * 86400
MODEL, MEMORY_MIB = "NVIDIA A100-SXM4-40GB", 40960
WORDS = (
    "resnet", "bert", "llama", "diffusion", "whisper", "gan", "vit", "unet", "yolo", "clip", "mamba", "moe", "gnn",
    "nerf", "sam", "detr", "bart", "roberta", "wav2vec", "dreamer",
)  # fmt: skip
PHASES = ("train", "eval", "sweep", "finetune", "debug")
LOST_GPU = {"code": "GPU_LOST", "uuid": "GPU-6b1fc2f6-0000-0000-0000-000000000000"}


@dataclass(frozen=True)
class Size:
    jobs: int  # all of them
    events: int  # at least two a job

    @property
    def ended(self) -> int:
        return self.jobs - RUNNING - WAITING

    @property
    def apart(self) -> float:
        """Seconds between two submissions."""
        return YEAR / self.ended


def fill(size: Size) -> None:
    """Make everything, in an empty database."""
    add_people()
    add_hosts()
    add_ended(size)
    add_running(size)
    add_waiting(size)
    add_usage()
    make_ready()
    _analyse()
    alive()  # all that took its time
    dispatch.run_pass()  # the scheduler's own reasons and estimates


def make_ready() -> None:
    """What else there is while the product runs: hosts that are heard of, and what its timer has rolled up."""
    alive()
    gputime.roll_up(timezone.now())
    while hostdays.roll_up(timezone.now()):
        pass


def is_filled(size: Size) -> bool:
    """Whether the database has this already."""
    return Job.objects.filter(pk=size.jobs).exists() and not Job.objects.filter(pk__gt=size.jobs).exists()


# --- who and where ---


def add_people() -> None:
    password = make_password(None)
    Team.objects.bulk_create(Team(pk=pk, name=f"team-{pk}") for pk in range(1, TEAMS + 1))
    User.objects.bulk_create(User(pk=pk, username=f"user-{pk}", password=password) for pk in range(1, USERS + 1))
    User.objects.create(pk=USERS + 1, username="admin", password=password, is_staff=True, is_superuser=True)
    Membership.objects.bulk_create(
        Membership(user_id=pk, team_id=(pk - 1) % TEAMS + 1) for pk in range(1, USERS + 1)
    )  # fmt: skip


def add_hosts() -> None:
    """By the very way in which readings come."""
    for name in host_names():
        Recorder(name).record(reading(name, []))
    Node.objects.update(millicpus=128_000, memory_mib=1 << 20, engine_id="engine", engine_version="20.10.24")
    alive()
    GPU.objects.update(clean_samples=2)


def host_names() -> list[str]:
    return [f"node-{number:02d}" for number in range(1, HOSTS + 1)]


def reading(name: str, claims: list[Any]) -> Any:
    """What the host's simulated GPUs show now."""
    return simulated.read_host(
        name, claims, time.time(), count=GPUS_A_HOST, model=MODEL, memory_mib=MEMORY_MIB, island=4
    )  # fmt: skip


def alive() -> None:
    """All hosts have been heard of just now."""
    now = timezone.now()
    Node.objects.update(last_seen=now)
    GPU.objects.update(sampled_at=now)


# --- jobs ---

_USER = f"(n * 7) % {USERS} + 1"
_TEAM = f"((n * 7) % {USERS}) % {TEAMS} + 1"


def add_ended(size: Size) -> None:
    """One after the other through the year, each on one GPU: GPU by GPU, so that none is held twice at once."""
    submitted = f"({size.jobs} - n) * {size.apart}"
    started, ended = f"{submitted} - 40", f"{submitted} - 40 - (600 + (n * 131) % 9000)"
    ended = f"CASE WHEN {ended} < 60 THEN 60 ELSE {ended} END"
    started = f"CASE WHEN {started} < 70 THEN 70 ELSE {started} END"
    state = ("CASE WHEN n % 10 < 7 THEN 'SUCCEEDED' WHEN n % 10 = 7 THEN 'FAILED'"
             " WHEN n % 10 = 8 THEN 'CANCELLED' ELSE 'TIMED_OUT' END")  # fmt: skip
    reason = ("CASE WHEN n % 10 < 7 THEN 'COMPLETED' WHEN n % 10 = 7 THEN 'EXIT_CODE'"
              " WHEN n % 10 = 8 THEN 'STOPPED_BY_USER' ELSE 'TIME_LIMIT' END")  # fmt: skip
    code = "CASE WHEN n % 10 < 7 THEN 0 WHEN n % 10 = 7 THEN 1 ELSE 143 END"
    span = (1, size.ended)
    _insert(
        Job, span, id="n", **_asked(), gpus="1", state=state, end_reason=reason, exit_code=code,
        created_at=_ago(submitted), queued_at=_ago(submitted), started_at=_ago(started), ended_at=_ago(ended),
    )  # fmt: skip
    _insert(
        Run, span, id="n", job_id="n", number="1", node_id=_node("n"), state="'ENDED'", end_reason=reason,
        exit_code=code, placed_at=_ago(submitted), starting_at=_ago(submitted), started_at=_ago(started),
        ended_at=_ago(ended), log_bytes="n % 100000", log_complete=_bool(True), container_id=_container(),
    )  # fmt: skip
    _hold(span, "1", _ago(submitted), _ago(ended))
    _insert(AllocationSlot, span, id="n", allocation_id="n", gpu_id=_gpu("n"), released_at=_ago(ended))
    _add_events(size, submitted, ended)


def _add_events(size: Size, submitted: str, ended: str) -> None:
    """So many for each job; the first is its submission, the last its end."""
    each = max(size.events // size.jobs, 2)
    states = ["QUEUED", "PLACED", "STARTING", "RUNNING"]
    for step in range(each):
        last = step == each - 1
        kind = "SUBMITTED" if step == 0 else "ENDED" if last else "MOVED" if step < len(states) else "WARNED"
        at = ended if last else f"{submitted} - {10 * step}"
        params = json.dumps({"reason": "COMPLETED"} if last else LOST_GPU if kind == "WARNED" else {})
        _insert(
            JobEvent, (1, size.ended), id=f"(n - 1) * {each} + {step + 1}", job_id="n", at=_ago(at), kind=f"'{kind}'",
            run_id="NULL" if step == 0 else "n", params=f"'{params}'", old_state=_text(states[step - 1 : step]),
            new_state=_text(["SUCCEEDED"] if last else states[step : step + 1]), actor_id="NULL",
        )  # fmt: skip
    _restart(JobEvent)


def add_running(size: Size) -> None:
    """Each on two GPUs, so that all are taken."""
    span, first = (size.ended + 1, size.ended + RUNNING), size.ended + 1
    since = "1800 + (n * 37) % 7200"
    limit = "36000 + (n % 7) * 7200"
    _insert(
        Job, span, id="n", **_asked(limit), gpus="2", state="'RUNNING'",
        created_at=_ago(f"{since} + 300"), queued_at=_ago(f"{since} + 300"), started_at=_ago(since),
    )  # fmt: skip
    gpu = f"(n - {first}) * 2"
    _insert(
        Run, span, id="n", job_id="n", number="1", node_id=_node(gpu), state="'RUNNING'",
        placed_at=_ago(f"{since} + 5"),
        starting_at=_ago(f"{since} + 4"), started_at=_ago(since), deadline=_ago(f"{since} - ({limit})"),
        container_id=_container(),
    )  # fmt: skip
    _hold(span, "2", _ago(f"{since} + 5"), "NULL", node=_node(gpu))
    for which in (0, 1):
        _insert(AllocationSlot, span, id=f"n + {which * RUNNING}", allocation_id="n", gpu_id=_gpu(f"{gpu} + {which}"))
    for model in (Run, Allocation, AllocationSlot):
        _restart(model)


def add_waiting(size: Size) -> None:
    span = (size.jobs - WAITING + 1, size.jobs)
    since = f"({size.jobs} - n) * 60 + 30"
    _insert(
        Job, span, id="n", **_asked(), gpus="1 + (n % 4) * (n % 3)", state="'QUEUED'", priority="1 + n % 2",
        created_at=_ago(since), queued_at=_ago(since),
    )  # fmt: skip
    _insert(
        JobEvent, span, kind="'SUBMITTED'", job_id="n", at=_ago(since), new_state="'QUEUED'", id=None, run_id="NULL",
        actor_id="NULL",
    )  # fmt: skip
    _restart(Job)


def _asked(limit: str = "14400") -> dict[str, str]:
    words = _pick([f"{phase}-{word}" for word in WORDS for phase in PHASES])
    image = _pick([f"registry.lab/{word}/{phase}:2.{at}" for at, word in enumerate(WORDS) for phase in PHASES], step=3)
    return {
        "name": f"{words} || '-lr' || (n % 9 + 1) || 'e-4-' || n", "image": image, "owner_id": _USER, "team_id": _TEAM,
        "submission": _uuid(), "millicpus": "8000", "memory_mib": "32768", "shm_mib": "1024",
        "script": "'python train.py'",
        "limit_seconds": limit,
    }  # fmt: skip


def _hold(span: tuple[int, int], gpus: str, start: str, end: str, node: str = "") -> None:
    _insert(
        Allocation, span, id="n", run_id="n", node_id=node or _node("n"), user_id=_USER, team_id=_TEAM, gpus=gpus,
        gpu_milli=f"{gpus} * 1000", millicpus="8000", memory_mib="32768", created_at=start, released_at=end,
    )  # fmt: skip


def add_usage() -> None:
    """What the scheduler's timer has rolled up in a year."""
    day, seconds = ("created_at::date", "EXTRACT(EPOCH FROM released_at - created_at)") if _postgres() else (
        "date(created_at)", "(julianday(released_at) - julianday(created_at)) * 86400")  # fmt: skip
    until = "date_trunc('day', now())" if _postgres() else "date('now')"
    _execute(f"INSERT INTO {UsageDay._meta.db_table} (day, user_id, team_id, gpu_seconds) "
             f"SELECT {day}, user_id, team_id, SUM({seconds}) FROM {Allocation._meta.db_table} "
             f"WHERE released_at IS NOT NULL AND created_at < {until} GROUP BY 1, 2, 3")  # fmt: skip


# --- SQL ---


def _postgres() -> bool:
    return connection.vendor == "postgresql"


def _insert(model: type[Model], span: tuple[int, int], **told: str | None) -> None:
    """One row for each number `n` of the span; None leaves a column to the database."""
    columns = {name: sql for name, sql in {**_defaults(model), **told}.items() if sql is not None}
    first, last = span
    numbers = f"WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last}) SELECT n FROM s"
    series = f"(SELECT generate_series({first}, {last}) AS n)" if _postgres() else f"({numbers})"
    names = ", ".join(f'"{name}"' for name in columns)
    _execute(f"INSERT INTO {model._meta.db_table} ({names}) SELECT {', '.join(columns.values())} FROM {series} AS s")


def _defaults(model: type[Model]) -> dict[str, str]:
    """Each column's own default, as SQL."""
    fields = [field for field in model._meta.concrete_fields if not field.primary_key and not field.generated]
    return {str(field.column): _default(field) for field in fields}


def _default(field: "Field[Any, Any]") -> str:
    value = field.get_default()
    if isinstance(field, JSONField):
        return f"'{json.dumps(value)}'"
    if isinstance(value, datetime):
        return _ago("0")
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else _bool(value)
    return str(int(value)) if isinstance(value, int) else f"'{value}'"


def _ago(seconds: str) -> str:
    if _postgres():
        return f"now() - make_interval(secs => {seconds})"
    return f"strftime('%Y-%m-%d %H:%M:%f000', {time.time():.3f} - ({seconds}), 'unixepoch')"


def _pick(words: list[str], step: int = 1) -> str:
    if _postgres():
        listed = ", ".join(f"'{word}'" for word in words)
        return f"(ARRAY[{listed}])[(n * {step}) % {len(words)} + 1]"
    return f"json_extract('{json.dumps(words)}', '$[' || ((n * {step}) % {len(words)}) || ']')"


def _node(n: str) -> str:
    return f"{_first(Node)} + (({n}) % {HOSTS * GPUS_A_HOST}) / {GPUS_A_HOST}"


def _gpu(n: str) -> str:
    return f"{_first(GPU)} + ({n}) % {HOSTS * GPUS_A_HOST}"


def _first(model: type[Node | GPU]) -> int:
    return min(model.objects.values_list("pk", flat=True))


def _container() -> str:
    return "lpad(to_hex(n), 64, '0')" if _postgres() else "printf('%064x', n)"


def _uuid() -> str:
    return "gen_random_uuid()" if _postgres() else "lower(hex(randomblob(16)))"


def _text(words: list[str]) -> str:
    return f"'{words[0]}'" if words else "''"


def _bool(value: bool) -> str:
    return str(value).upper() if _postgres() else str(int(value))


def _restart(model: type[Model]) -> None:
    """Go on counting where the rows end."""
    if _postgres():
        table = model._meta.db_table
        _execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))")


def _analyse() -> None:
    _execute("VACUUM ANALYZE" if _postgres() else "ANALYZE")


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
