"""The jobs of a campaign: kinds mixed by a seed, what bytes each prints, and what it exits with. Pure."""

import random
import uuid
from dataclasses import dataclass
from typing import Any

from tests.chaos.evidence import FOREVER, STOP_LINE, STOPPED, Limit, Order

IMAGE = "dockyard-test/busybox:latest"
PAUSE = 0.25  # seconds between two lines of a slow job
KINDS = {
    "ok": 18, "code": 18, "slow": 10, "flood": 8, "both": 8, "out of memory": 6, "time limit": 6, "cancelled": 10,
    "preemptible": 10, "moved": 4, "urgent": 8,
}  # fmt: skip
PEOPLE = {"ann": "red", "bob": "red", "cyd": "blue"}
LIMITS = (
    Limit(whose="owner", name="ann", gpus=6), Limit(whose="owner", name="bob", gpus=5, jobs=4),
    Limit(whose="owner", name="cyd", jobs=7), Limit(whose="team", name="red", gpus=8),
)  # fmt: skip
CODES = [code for code in range(1, 125) if code != STOPPED]
_NOTE = '{ echo $i >>"$DOCKYARD_JOB_DIR/noted.$DOCKYARD_RUN"; } 2>/dev/null'
_COUNT = "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo {token} $i; {note}; sleep {pause}; done"
_BOTH = "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo {token} $i; echo {token} error $i >&2; done"
# A shell says "Terminated" of a child that its signal met; the trap says it in known words instead.
_TRAP = "exec 2>/dev/null; trap 'echo {token} {word}; exit {code}' TERM; "


@dataclass(frozen=True)
class _Kind:
    """Its script, and how many lines it prints at least and at most; what else it asks for is in `_wishes`."""

    form: str
    least: int
    most: int
    noted: bool = False


_FORMS = {
    "ok": _Kind("seq", 1, 200), "code": _Kind("seq", 1, 2000), "slow": _Kind("count", 20, 60, noted=True),
    "flood": _Kind("seq", 100_000, 300_000), "both": _Kind("both", 200, 1500), "out of memory": _Kind("seq", 1, 50),
    "time limit": _Kind("count", FOREVER, FOREVER, noted=True),
    "cancelled": _Kind("count", FOREVER, FOREVER, noted=True),
    "preemptible": _Kind("count", 30, 80, noted=True), "moved": _Kind("count", 40, 80, noted=True),
    "urgent": _Kind("seq", 1, 200),
}  # fmt: skip


def orders(count: int, seconds: float, seed: int) -> list[Order]:
    """`count` jobs over `seconds`, the same for the same seed; each kind comes up where there are enough of them."""
    dice = random.Random(seed)
    kinds = [kind for kind, weight in KINDS.items() for _ in range(weight)]
    drawn = [*KINDS, *dice.choices(kinds, k=max(count - len(KINDS), 0))][:count]
    dice.shuffle(drawn)
    times = sorted(dice.uniform(0, seconds) for _ in drawn)
    return [order(number, kind, at, dice) for number, (kind, at) in enumerate(zip(drawn, times, strict=True), 1)]


def order(number: int, kind: str, at: float, dice: random.Random) -> Order:
    form = _FORMS[kind]
    owner = dice.choice(list(PEOPLE))
    code = dice.choice(CODES) if kind in ("code", "slow", "both", "preemptible", "moved") else 0
    lines, gpus = dice.randint(form.least, form.most), dice.choice([0, 0, 1, 1, 1, 2, 2, 3, 4])
    if kind in ("preemptible", "moved", "urgent"):
        gpus = max(gpus, 1)
    made = Order(
        number=number, kind=kind, owner=owner, team=PEOPLE[owner], gpus=gpus, lines=lines, at=at, form=form.form,
        exit_code=137 if kind == "out of memory" else code, noted=form.noted, moves=_moves(kind, dice), body={},
    )  # fmt: skip
    body = _body(made, uuid.UUID(int=dice.getrandbits(128), version=4)) | _wishes(kind, dice)
    return Order(**{**made.__dict__, "body": body})


def _moves(kind: str, dice: random.Random) -> tuple[tuple[float, str], ...]:
    if kind == "cancelled":
        return ((dice.choice([0.0, dice.uniform(0, 3), dice.uniform(3, 25)]), "cancel"),)
    if kind == "moved":
        return tuple((dice.uniform(4, 20), "move") for _ in range(2))
    return ()


def _body(made: Order, submission: uuid.UUID) -> dict[str, Any]:
    """As the API takes it."""
    return {
        "name": made.token, "team": made.team, "image": IMAGE, "script": _script(made), "gpus": made.gpus,
        "cpus": 0.2, "memory_gib": 0.0625, "shm_gib": 0.015625, "limit": "1h", "grace_seconds": 30,
        "submission": str(submission), "offline": True,
    }  # fmt: skip


def _wishes(kind: str, dice: random.Random) -> dict[str, Any]:
    """What this kind asks for beside."""
    return {
        "time limit": {"limit": dice.randint(3, 6)},
        "preemptible": {"preemptible": True, "priority": "low"},
        "urgent": {"priority": "high"},
        "moved": {"movable": True},
    }.get(kind, {})


def _script(made: Order) -> str:
    words = {"token": made.token, "lines": made.lines, "pause": PAUSE, "note": _NOTE if made.noted else ":"}
    if made.form == "seq":
        end = "exec tail /dev/zero" if made.kind == "out of memory" else f"exit {made.exit_code}"
        # The shell would say on stderr that a signal ended `seq`.
        return f"exec 2>/dev/null; echo {made.token}; seq 1 {made.lines}; {end}"
    if made.form == "both":
        return _BOTH.format(**words) + f"; exit {made.exit_code}"
    trap = _TRAP.format(token=made.token, word=STOP_LINE, code=STOPPED)
    return trap + _COUNT.format(**words) + f"; exit {made.exit_code}"


def printed(made: Order, lines: int | None = None) -> tuple[bytes, bytes]:
    """Standard output and standard error of a whole run, or of its first `lines`."""
    numbers = range(1, (made.lines if lines is None else lines) + 1)
    if made.form == "seq":
        return "".join([f"{made.token}\n", *(f"{i}\n" for i in numbers)]).encode(), b""
    out = "".join(f"{made.token} {i}\n" for i in numbers).encode()
    return out, b"".join(b"%s error %d\n" % (made.token.encode(), i) for i in numbers if made.form == "both")
