"""Whether a run's job may start again at once where it is stopped in order to go on elsewhere: by quotas. Pure."""

from dataclasses import replace

from jobs.policy.kinds import Kinds
from jobs.policy.view import Running, Snapshot
from jobs.quotas import Usage, never, start, still_asked


def without(snapshot: Snapshot, run: Running) -> Snapshot:
    """The snapshot with quotas that count no longer what the run holds; the time that it was promised they do."""
    users, teams = snapshot.user_usage, snapshot.team_usage
    return replace(
        snapshot,
        user_usage={**users, run.user: _less(users.get(run.user, Usage()), run)},
        team_usage={**teams, run.team: _less(teams.get(run.team, Usage()), run)},
    )


def may_go_on(snapshot: Snapshot, run: Running, kinds: Kinds) -> bool:
    """Whether no quota would hold back what the run's job asks for, once the run has ended."""
    job = run.ask
    if job is None:
        return False
    levels = [
        (limits[pk], _less(usage.get(pk, Usage()), run))
        for limits, usage, pk in (
            (snapshot.user_limits, snapshot.user_usage, run.user), (snapshot.team_limits, snapshot.team_usage, run.team)
        )
        if pk in limits
    ]  # fmt: skip
    models = kinds.models(job) if levels else ()
    refusals = [*never(job, *(limits for limits, _used in levels), models=models), *start(job, *levels, models=models)]
    return not still_asked(refusals, begun=True, moved=True)


def _less(of: Usage, run: Running) -> Usage:
    models = {**of.milli_by_model, run.model: of.milli_by_model.get(run.model, 0) - run.milli} if run.gpus else {}
    return replace(
        of, gpu_milli=of.gpu_milli - run.milli, milli_by_model=models or of.milli_by_model,
        millicpus=of.millicpus - run.millicpus, memory_mib=of.memory_mib - run.memory_mib,
        running_jobs=of.running_jobs - 1, interactive_jobs=of.interactive_jobs - run.interactive,
    )  # fmt: skip
