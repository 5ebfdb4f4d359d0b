"""Commands on the order of the queue. Importing this adds them to the app."""

from typing import Annotated, Any

import typer

from portal.cli.app import AsJson, JobId, JobIds, app, client, job_number, listing, on_each
from portal.cli.text import _


@app.command(help=_("Put waiting jobs before all others; for administrators."))
@on_each("pin", _("#%(id)d: pinned."), _("#%(id)d: is pinned already, or does not wait."))
def pin(jobs: JobIds) -> None: ...


@app.command(help=_("Take pins away; for administrators."))
@on_each("unpin", _("#%(id)d: no longer pinned."), _("#%(id)d: is not pinned, or does not wait."))
def unpin(jobs: JobIds) -> None: ...


@app.command(help=_("Give a waiting job another priority: low, normal, high or urgent."))
def priority(job: JobId, level: Annotated[str, typer.Argument(metavar="PRIORITY")]) -> None:
    _post(job, "priority", {"priority": level.lower()}, _("#%(id)d: changed."))


@app.command(help=_("Move a waiting job among your own: up, down, or to the place of another."))
def reorder(
    job: JobId, to: Annotated[str, typer.Argument(metavar="up|down|ID", help=_("Where to."))] = "up"
) -> None:  # fmt: skip
    where: Any = to if to in ("up", "down") else job_number(to)
    _post(job, "reorder", {"to": where}, _("#%(id)d: moved."))


def _post(job: str, verb: str, body: Any, done: str) -> None:
    number = job_number(job)
    answer = client().post(f"/api/jobs/{number}/{verb}", body)
    typer.echo((done if answer["changed"] else _("#%(id)d: nothing changed.")) % {"id": number})


@app.command(help=_("Who has had their part of the GPUs, and what that does to their jobs."))
def fairshare(as_json: AsJson = False) -> None:
    listing("/api/fairshare", as_json, lambda show, answer: show.fair_share(answer))
