"""Choose a node and GPUs for one job, or keep a node for it. Pure."""

from collections.abc import Iterable
from functools import partial

from jobs.policy.fleet import Fleet, Group, Score
from jobs.policy.ledger import Ledger, is_cut, shares
from jobs.policy.neighbours import NEAR, torn
from jobs.policy.outlook import Outlook
from jobs.policy.rooms import Lot, Room, room_of
from jobs.policy.view import Gpu, Waiting


def choose(job: Waiting, fleet: Fleet) -> Ledger | None:
    """The node to start on; None when the job fits nowhere now.

    Smallest score first: most GPUs of those an elastic job could use, none that are cut for shares where the job takes
    whole ones, close together, none better than needed. Then packed, so that as much as can be of what stays free is
    of use to others; or spread: the emptiest node.
    """
    spread = job.team in fleet.spread
    return fleet.best(job, partial(_spread if spread else _packed, job, fleet), key=(job.shape, spread))


def _spread(job: Waiting, _fleet: Fleet, group: Group) -> Score:
    room = group.room
    return *_left(job, group)[1], -room.gpus, -room.millicpus, -room.memory_mib


def _packed(job: Waiting, fleet: Fleet, group: Group) -> Score:
    outlook, room = fleet.outlook, group.room
    if not room.lots:
        return _packed_bare(job, room)
    if len(room.lots) == 1 and (job.gpus <= 1 or not room.links):
        return _packed_alone(job, outlook, room, group.worth(outlook))
    left, fit = _left(job, group)
    loss = outlook.loss(room, group.worth(outlook), left)
    return *fit, round(loss, 6), left.gpus, left.memory_mib, left.millicpus


def _packed_bare(job: Waiting, room: Room) -> Score:
    """As `_packed`, where no GPU is free and none is asked for."""
    millicpus, memory_mib = room.rounded(job)
    return 0.0, 0, memory_mib, millicpus


def _packed_alone(job: Waiting, outlook: Outlook, room: Room, worth: float) -> Score:
    """As `_packed`, without the room made anew, where no choice is among kinds or links. Most are so."""
    lot = room.lots[0]
    rest, (millicpus, memory_mib) = lot.without(job) if job.gpus else lot, room.rounded(job)
    loss = worth and worth - outlook.lot(rest, room.labels, millicpus, memory_mib)
    fit = _fit(job, lot) if job.gpus else ()
    return *fit, round(loss, 6), rest.gpus, memory_mib, millicpus


def _left(job: Waiting, group: Group) -> tuple[Room, Score]:
    """The room once the job is there, and how well it is served: GPUs missing, cut for others, apart, and too large."""
    room = group.room
    if not job.gpus:
        return room.less(job, room.lots), ()
    if job.gpus > 1 and (room.links or len(room.lots) > 1):
        return _left_of_several(job, group.one)
    place, lot = _lot(job, room)
    lots = (*room.lots[:place], lot.without(job), *room.lots[place + 1 :])
    return room.less(job, lots), _fit(job, lot)


def _fit(job: Waiting, lot: Lot) -> Score:
    """How well the job is served from one lot."""
    missing = max(job.gpus - lot.whole, 0) if job.gpus > 1 else 0
    wasted = (job.gpus - missing) * _is_waste(job, lot.kind.gpu)
    return missing, wasted, NEAR, lot.kind.memory_mib


def _lot(job: Waiting, room: Room) -> tuple[int, Lot]:
    """The lot, and its place, that a job of one GPU or of one lot is given from: as `Ledger.choice` has it."""
    if len(room.lots) == 1:
        return 0, room.lots[0]
    usable = [(place, lot) for place, lot in enumerate(room.lots) if lot.usable(job)]
    if len(usable) == 1:
        return usable[0]
    if shares(job):
        return min(usable, key=lambda found: (found[1].kind.memory_mib, found[1].tightest(job)))
    return min(usable, key=lambda found: _is_waste(job, found[1].kind.gpu))  # of equal ones the smallest GPUs


def _is_waste(job: Waiting, gpu: Gpu) -> bool:
    """Whether a GPU that is cut for shares goes to a job that takes it whole."""
    return not shares(job) and is_cut(gpu)


def _left_of_several(job: Waiting, ledger: Ledger) -> tuple[Room, Score]:
    """Where it matters which of the GPUs are taken: try it."""
    trial = ledger.copy()
    gpus = trial.take(job)
    most = max((gpu.memory_mib or 0 for gpu in gpus), default=0)
    return room_of(trial), (job.gpus - len(gpus), sum(_is_waste(job, gpu) for gpu in gpus), torn(gpus), most)


def choose_to_keep(job: Waiting, able: Iterable[Ledger]) -> Ledger | None:
    """The node whose freed resources are kept for a job blocked for long: the one nearest to fitting it.

    `able` are those that it would fit on were nothing running there.
    """
    candidates = [ledger for ledger in able if ledger.kept is None]
    return max(candidates, key=lambda ledger: _nearness(job, ledger), default=None)


def _nearness(job: Waiting, ledger: Ledger) -> tuple[int, int, int, str]:
    return (
        min(len(ledger.suiting(job)), job.gpus),
        min(ledger.millicpus, job.millicpus),
        min(ledger.memory_mib, job.memory_mib),
        ledger.node.name,
    )
