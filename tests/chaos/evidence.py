"""What a campaign of chaos leaves to be judged, as plain data. Pure. Times are seconds since 1970, of one clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STOPPED = 9  # what a job exits with that was told to stop
STOP_LINE = "stopped"
FOREVER = 1_000_000  # lines of a job that only ends when it is stopped


@dataclass(frozen=True, kw_only=True)
class Order:
    """A job as asked for, and what must become of it.

    `kind` decides how it may end (`judge.ENDS`). It prints its token's lines 1 to `lines` (see `mix.printed`), notes
    each in its workspace if it is `noted`, and exits with `exit_code`. `moves`: (seconds after its submission, verb).
    """

    number: int
    kind: str
    owner: str
    team: str
    gpus: int
    exit_code: int
    lines: int
    at: float  # seconds from the campaign's begin
    body: Mapping[str, Any]
    form: str = "count"  # how it prints: count, seq, both
    noted: bool = False
    moves: tuple[tuple[float, str], ...] = ()

    @property
    def token(self) -> str:
        return f"t{self.number}"


@dataclass(frozen=True, kw_only=True)
class Container:
    """What an observer saw of one container. `begun` None: it never started; `ended` None: nobody saw its end."""

    host: str
    id: str
    job: int
    attempt: int
    gpus: tuple[str, ...] = ()
    begun: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    starts: int = 0
    signals: tuple[int, ...] = ()
    known: bool = True  # its GPUs were read from the engine

    @property
    def has_run(self) -> bool:
        return self.begun is not None

    def span(self) -> tuple[float, float]:
        """From its start to its end; without an end it runs on."""
        return self.begun or 0.0, float("inf") if self.ended is None else self.ended


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the portal says of one run. `noted`: how many lines its program noted in its workspace; None: no note."""

    number: int
    host: str
    state: str
    end_reason: str
    exit_code: int | None
    has_started: bool
    placed_at: float
    ended_at: float | None
    log: bytes = b""
    log_complete: bool = True
    holes: int = 0
    noted: int | None = None


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the portal says of one job at the end."""

    job: int
    name: str
    state: str
    end_reason: str
    exit_code: int | None
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A fault that excuses some ends on its host: `engine` or `node` away, or `disk` full."""

    host: str
    what: str
    begun: float
    ended: float


@dataclass(frozen=True, kw_only=True)
class Limit:
    """At most so many GPUs and running jobs at once of an owner or team; None: no limit."""

    whose: str  # "owner" or "team"
    name: str
    gpus: int | None = None
    jobs: int | None = None


@dataclass(kw_only=True)
class Evidence:
    """All of it. `jobs`: the id that the portal gave for each order's number."""

    orders: list[Order]
    jobs: dict[int, int]
    told: list[Told]
    containers: list[Container]
    outages: list[Outage] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    allocations_left: int = 0
    containers_left: list[str] = field(default_factory=list)

    def ordered(self) -> dict[int, Order]:
        """By the portal's job id."""
        return {self.jobs[order.number]: order for order in self.orders if order.number in self.jobs}


def assemble(host: str, records: Iterable[Mapping[str, Any]]) -> list[Container]:
    """The containers of a host from its observer's records (`observer.py`), in any order.

    Of several times of a start or an end the earliest counts: the engine tells of an end after it was.
    """
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_id.setdefault(record["id"], []).append(record)
    return [_container(host, name, found) for name, found in by_id.items() if any("job" in record for record in found)]


def _container(host: str, name: str, records: list[Mapping[str, Any]]) -> Container:
    facts: dict[str, Any] = {}
    for record in records:
        facts |= {key: record[key] for key in ("job", "attempt", "gpus") if key in record}
    starts = {record["at"] for record in records if record["what"] == "start"}
    begun = sorted(starts | {record["started"] for record in records if record.get("started")})
    ended = sorted(record["ended"] for record in records if record.get("ended"))
    # The first that was said: an engine that dies then says that it does not know.
    codes = [record["exit_code"] for record in records if record.get("exit_code") is not None]
    signals = {record["at"]: record["signal"] for record in records if record["what"] == "kill"}
    return Container(
        host=host, id=name, job=facts["job"], attempt=facts["attempt"], gpus=tuple(facts.get("gpus", ())),
        begun=begun[0] if begun else None, ended=ended[0] if ended else None, exit_code=codes[0] if codes else None,
        starts=max(len(starts), int(bool(begun))), signals=tuple(signals.values()), known="gpus" in facts,
    )  # fmt: skip
