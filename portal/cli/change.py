"""Commands that change a job after it was submitted. Importing this adds them to the app."""

from typing import Annotated, Any

import typer

from portal.cli.app import JobId, app, client, job_number
from portal.cli.text import _

Labels = list[str] | None


@app.command(help=_("Move a running job to other GPUs: it is stopped and started again at once, with the same files."))
def move(
    job: JobId,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "-g", min=1, help=_("Of an elastic job: go on with so many."))
    ] = None,
) -> None:
    number = job_number(job)
    answer = client().post(f"/api/jobs/{number}/move", {} if gpus is None else {"gpus": gpus})
    done = _("#%(id)d: being moved.") if answer["changed"] else _("#%(id)d: does not run, or is being stopped already.")
    typer.echo(done % {"id": number})


@app.command(help=_("Ask for less, or for other GPUs, while a job waits; it keeps its place."))
def amend(
    job: JobId,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=1, help=_("Fewer GPUs."))] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", "-c", help=_("Fewer CPUs."))] = None,
    memory: Annotated[
        float | None, typer.Option("--memory", "-m", metavar="GIB", help=_("Less memory, in GiB."))
    ] = None,
    limit: Annotated[str | None, typer.Option("--limit", "-t", help=_("A shorter time limit: 30m, 2h."))] = None,
    gpu_model: Annotated[
        str | None, typer.Option(metavar="MODEL|any", help=_("Another GPU model, as dockyard gpus lists it."))
    ] = None,
    label: Annotated[
        Labels, typer.Option(metavar="KEY=VALUE", help=_("Keep only this of its labels; may be repeated."))
    ] = None,
    no_labels: Annotated[bool, typer.Option("--no-labels", help=_("On any host, whatever its labels."))] = False,
) -> None:
    number = job_number(job)
    less: dict[str, Any] = {"gpus": gpus, "cpus": cpus, "memory_gib": memory, "limit": limit}
    less["gpu_model"] = "" if gpu_model and gpu_model.lower() == "any" else gpu_model
    less["node_labels"] = [] if no_labels else label
    asked = {name: value for name, value in less.items() if value is not None}
    answer = client().post(f"/api/jobs/{number}/amend", asked)
    done = (
        _("#%(id)d: amended.")
        if answer["changed"]
        else _("#%(id)d: nothing to change: it asks for that, or waits no more.")
    )
    typer.echo(done % {"id": number})


@app.command(help=_("Give a running job more time, if that delays nobody; status 1 when it does."))
def extend(
    job: JobId,
    extension: Annotated[str, typer.Argument(metavar="DURATION", help=_("How much more: 30m, 2h, 1d."))],
) -> None:
    number = job_number(job)
    answer = client().post(f"/api/jobs/{number}/extend", {"extension": extension})
    typer.echo(f"#{number}: {answer['message']}")
    if not answer["granted"]:
        raise SystemExit(1)
