"""The commands. Each is thin: read the arguments, ask the server, show."""

import importlib
import json
import os
import sys
import uuid
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import config as configuration
from portal.cli.failure import EXIT_FAILURE, UNREADABLE, Answers, Failure
from portal.cli.text import _

EPILOG = _(
    "Exit status of submit --follow, logs --follow and wait: the container's own exit code; 124 when the time limit "
    "ended the job, 125 when it was lost with its host, 130 when it was cancelled, 1 when it failed otherwise. "
    "2 when a command itself fails."
)
app = typer.Typer(
    name="dockyard", no_args_is_help=True, add_completion=True, rich_markup_mode=None, epilog=EPILOG,
    pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]},
    help=_("Submit GPU jobs to Dockyard, watch them and read their logs."),
)  # fmt: skip

JobId = Annotated[str, typer.Argument(metavar="ID", help=_("The job's number."))]
JobIds = Annotated[list[str], typer.Argument(metavar="ID…", help=_("The jobs' numbers."))]
AsJson = Annotated[bool, typer.Option("--json", help=_("Print the server's answer as JSON."))]
RunNumber = Annotated[int | None, typer.Option("--run", min=1, help=_("Which attempt; the last one unless told."))]
Patience = Annotated[str, typer.Option(
    envvar="DOCKYARD_PATIENCE", metavar="DURATION",
    help=_("Give up, with status 2, when the server has not answered for so long."),
)]  # fmt: skip


@app.callback()
def everywhere(
    lang: Annotated[
        str, typer.Option(metavar="en|zh", help=_("Language; as the environment has it unless told."))
    ] = "",
) -> None:
    """What stands before the command. `--lang` was heeded before this file was imported."""


def run() -> None:
    """Run the command line; every failure is a sentence on stderr and status 2."""
    for more in ("change", "order"):
        importlib.import_module(f"portal.cli.{more}")
    Answers.came = False
    try:
        app(prog_name="dockyard")
    except Failure as failure:
        _complain(failure)
        raise SystemExit(EXIT_FAILURE) from None
    except UNREADABLE as error:
        if not Answers.came:
            raise
        _complain(_not_understood(error))
        raise SystemExit(EXIT_FAILURE) from None
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _not_understood(error: Exception) -> Failure:
    return Failure(
        _("The server's answer is not understood (%(kind)s: %(error)s).")
        % {"kind": type(error).__name__, "error": str(error)[:200]},
        _("The command and the server may be of different versions: install the server's, or ask its administrators."),
    )


def _complain(failure: Failure) -> None:
    sys.stderr.write(f"dockyard: {failure.sentence}\n")
    if failure.remedy:
        sys.stderr.write(f"  {failure.remedy}\n")


def client() -> Any:
    """The server of the stored log-in."""
    from portal.cli.client import Client

    settings = configuration.load()
    if not settings.token:
        raise Failure(_("You are not logged in to %s.") % settings.url, _("Run: dockyard login %s") % settings.url)
    return Client(settings)


def job_number(text: str) -> int:
    """12 from "12" or "#12". Raises Failure."""
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdigit()) or len(number) > 18:
        raise Failure(_("“%s” is no job number.") % text, _("dockyard ps lists your jobs."))
    return int(number)


def print_json(answer: Any) -> None:
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))


# --- log-in ---


@app.command(help=_("Log in to a server and keep a token for the commands to come."))
def login(
    url: Annotated[str, typer.Argument(help=_("The server's address."))] = "",
    token: Annotated[str, typer.Option(help=_("Use this token instead of a password."))] = "",
    user: Annotated[str, typer.Option("--user", "-u", help=_("User name; asked for unless given."))] = "",
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help=_("Read the password from standard input."))
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help=_("A token that can look but not submit."))] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help=_("The token expires after so many days."))] = 90,
) -> None:
    from portal.cli.client import Client

    address = configuration.clean_url(url or configuration.load().url)
    if not token:
        token = _new_token(address, user, password_stdin, {"scope": "read" if read_only else "write", "days": days})
    settings = configuration.Config(address, token)
    me = Client(settings).get("/api/me")
    where = configuration.save(settings)
    typer.echo(_("Logged in to %(url)s as %(user)s; the token is in %(path)s.")
               % {"url": address, "user": me["username"], "path": where})  # fmt: skip


def _new_token(address: str, user: str, password_stdin: bool, wishes: dict[str, Any]) -> str:
    import socket

    from portal.cli.client import Client

    settings = configuration.Config(address, "")
    if address.startswith("http://") and not settings.is_local:
        typer.echo(_("Note: %s is not encrypted; others on the network could read the password.") % address, err=True)
    user = user or typer.prompt(_("User name"), err=True)
    password = sys.stdin.readline().rstrip("\n") if password_stdin else typer.prompt(
        _("Password"), hide_input=True, err=True
    )  # fmt: skip
    body = {"username": user, "password": password, "name": f"dockyard @ {socket.gethostname()}"[:80], **wishes}
    token: str = Client(settings).post("/api/login", body)["token"]
    return token


@app.command(help=_("Revoke the stored token and forget it."))
def logout() -> None:
    settings = configuration.load()
    client().delete("/api/login")
    configuration.save(configuration.Config(settings.url, ""))
    typer.echo(_("Logged out of %s.") % settings.url)


# --- looking ---


@app.command(help=_("List jobs: yours that have not ended, unless told otherwise."))
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help=_("Ended jobs too."))] = False,
    everyone: Annotated[bool, typer.Option("--everyone", help=_("Jobs of your teams too."))] = False,
    state: Annotated[list[str] | None, typer.Option("--state", "-s", help=_("Only this; may be repeated."))] = None,
    search: Annotated[str | None, typer.Option("--search", help=_("Part of a name or image, or a user."))] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=200, help=_("At most so many."))] = 50,
    as_json: AsJson = False,
) -> None:
    from portal.cli import show

    states = [s.upper() for s in state] if state else None if everything else ["active"]
    answer = client().get("/api/jobs", state=states, mine=None if everyone else True, search=search, limit=last)
    if as_json:
        print_json(answer)
    else:
        show.jobs(answer["jobs"], more=answer["next"] is not None)


@app.command("show", help=_("Everything about one job."))
def show_job(job: JobId, as_json: AsJson = False) -> None:
    from portal.cli import show

    server, number = client(), job_number(job)
    answer = server.get(f"/api/jobs/{number}")
    if as_json:
        print_json(answer)
    else:
        receipt = server.get(f"/api/jobs/{number}/receipt") if answer["is_ended"] else None
        show.job(answer, server.get(f"/api/jobs/{number}/events")["events"], receipt)


@app.command(help=_("Why a job waits, or why it ended; and what would help."))
def why(job: JobId, as_json: AsJson = False) -> None:
    from portal.cli import explain

    answer = client().get(f"/api/jobs/{job_number(job)}/why")
    if as_json:
        print_json(answer)
    else:
        explain.why(answer)


@app.command(help=_("The GPUs, and who uses them."))
def gpus(as_json: AsJson = False) -> None:
    listing("/api/gpus", as_json, lambda show, answer: show.gpus(answer))


@app.command(help=_("All waiting jobs in order, with what each waits for."))
def queue(as_json: AsJson = False) -> None:
    listing("/api/queue", as_json, lambda show, answer: show.queue(answer))


@app.command(help=_("Your limits and your teams', and what is in use."))
def quota(as_json: AsJson = False) -> None:
    listing("/api/quota", as_json, lambda show, answer: show.quota(answer))


def listing(path: str, as_json: bool, shown: Callable[[Any, Any], None]) -> None:
    from portal.cli import show

    answer = client().get(path)
    if as_json:
        print_json(answer)
    else:
        shown(show, answer)


# --- acting ---


def on_each(verb: str, done: str, already: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that posts one verb to each of some jobs; goes on after a refusal and then ends with status 2."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(jobs: JobIds) -> None:
            server, failed = client(), False
            for number in [job_number(job) for job in jobs]:
                try:
                    answer = server.post(f"/api/jobs/{number}/{verb}")
                    typer.echo((done if answer["changed"] else already) % {"id": number})
                except Failure as failure:
                    _complain(Failure(f"#{number}: {failure.sentence}", failure.remedy))
                    failed = True
            if failed:
                raise SystemExit(EXIT_FAILURE)

        return wrapped

    return decorate


@app.command(help=_("Stop jobs, or take them out of the queue."))
@on_each("cancel", _("#%(id)d: cancelled."), _("#%(id)d: has ended or is being stopped already."))
def cancel(jobs: JobIds) -> None: ...


@app.command(help=_("Keep waiting jobs from starting."))
@on_each("hold", _("#%(id)d: on hold."), _("#%(id)d: nothing to hold: it is held, runs or has ended."))
def hold(jobs: JobIds) -> None: ...


@app.command(help=_("Let held jobs start again."))
@on_each("release", _("#%(id)d: released."), _("#%(id)d: you hold nothing back here."))
def release(jobs: JobIds) -> None: ...


@app.command(help=_("Print a job's log, byte for byte."))
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help=_("Go on as it grows; end as the job ends."))] = False,
    run_number: RunNumber = None,
    tail: Annotated[int | None, typer.Option(min=0, help=_("Only the last so many bytes."))] = None,
    patience: Patience = "10m",
) -> None:
    from portal.cli import follow as following
    from portal.cli import logs as reading

    server, number, patient = client(), job_number(job), following.Patience.of(patience)
    if follow:
        raise SystemExit(following.follow(server, number, tail=tail, patience=patient))
    reading.print_log(server, number, run_number, tail)


@app.command(help=_("Wait until a job has ended; the exit status is the job's."))
def wait(job: JobId, patience: Patience = "10m") -> None:
    from portal.cli import follow

    raise SystemExit(follow.wait(client(), job_number(job), follow.Patience.of(patience)))


@app.command(help=_("List the files a job left in its folder."))
def files(job: JobId, as_json: AsJson = False) -> None:
    listing(f"/api/jobs/{job_number(job)}/files", as_json, lambda show, answer: show.files(answer["files"]))


@app.command(help=_("Download one file of a job; to standard output with -o -."))
def get(
    job: JobId,
    path: Annotated[str, typer.Argument(metavar="PATH", help=_("As dockyard files lists it."))],
    output: Annotated[str, typer.Option("--output", "-o", help=_("Where to; the file's own name unless told."))] = "",
) -> None:
    from portal.cli import logs as reading

    reading.download(client(), job_number(job), path, output or Path(path).name)


@app.command(help=_("Submit a job. What stands after -- is its command; a single word there is a shell script."))
def submit(
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND…]")] = None,
    image: Annotated[str, typer.Option("--image", "-i", help=_("Image to run."))] = "",
    name: Annotated[str | None, typer.Option("--name", help=_("Name; made from the image unless given."))] = None,
    team: Annotated[str | None, typer.Option("--team", help=_("Team to charge; needed with more than one."))] = None,
    script: Annotated[str | None, typer.Option("--script", metavar="FILE|-", help=_("Script for /bin/sh -c."))] = None,
    entrypoint: Annotated[str | None, typer.Option(help=_("Replaces the image's entry point, for COMMAND."))] = None,
    own_entrypoint: Annotated[bool, typer.Option("--own-entrypoint", help=_("COMMAND is for the image's."))] = False,
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=0, help=_("GPUs."))] = None,
    gpu_model: Annotated[str | None, typer.Option(help=_("GPU model, as dockyard gpus lists it."))] = None,
    gpu_memory: Annotated[str | None, typer.Option(help=_("Memory of each GPU, at least: 24GiB, or 24."))] = None,
    share: Annotated[float | None, typer.Option("--share", metavar="PERCENT",
                     help=_("Share of its one GPU, where hosts share them."))] = None,
    profile: Annotated[str | None, typer.Option(help=_("MIG profile: 1g.10gb."))] = None,
    least_gpus: Annotated[int | None, typer.Option(min=1, help=_("Elastic: start with as few GPUs as this."))] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE",
                     help=_("Only on hosts with this label; may be repeated."))] = None,
    preemptible: Annotated[bool, typer.Option("--preemptible", help=_("May be stopped for higher priority."))] = False,
    movable: Annotated[bool, typer.Option("--movable", help=_("May be moved to other GPUs to make room."))] = False,
    interactive: Annotated[bool, typer.Option("--interactive", help=_("Somebody works in it."))] = False,
    offline: Annotated[bool, typer.Option("--offline", help=_("Without any network."))] = False,
    stop_signal: Annotated[str | None, typer.Option("--signal", help=_("To stop it by: SIGTERM, SIGINT …"))] = None,
    cpus: Annotated[str | None, typer.Option("--cpus", "-c", help=_("CPUs: 4, 0.5."))] = None,
    memory: Annotated[str | None, typer.Option("--memory", "-m", help=_("Memory: 16GiB, or 16."))] = None,
    shm: Annotated[str | None, typer.Option(help=_("Shared memory: 2GiB, or 2."))] = None,
    limit: Annotated[str | None, typer.Option("--limit", "-t", help=_("Time limit: 30m, 2h, 1d 4h; none."))] = None,
    grace: Annotated[str | None, typer.Option(help=_("Between SIGTERM and SIGKILL: 30s."))] = None,
    priority: Annotated[str | None, typer.Option("--priority", "-p", help=_("low, normal, high or urgent."))] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="NAME[=VALUE]",
                   help=_("Environment variable; without a value, as it is here."))] = None,
    secret: Annotated[list[str] | None, typer.Option("--secret", metavar="NAME[=VALUE]",
                      help=_("The same, encrypted and never shown again."))] = None,
    mount: Annotated[list[str] | None, typer.Option("--mount", help=_("Name of a mount; may be repeated."))] = None,
    start_after: Annotated[str | None, typer.Option(help=_("Not before: 2026-01-31 18:00, or in 2h."))] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help=_("Show its log; end as the job ends."))] = False,
    patience: Patience = "10m",
    preview: Annotated[bool, typer.Option("--preview", help=_("Only say what would happen."))] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    from portal.cli import explain, request, show
    from portal.cli import follow as following

    body = request.body(
        command=command or [], image=image, name=name, team=team, script=script, entrypoint=entrypoint,
        own_entrypoint=own_entrypoint, gpus=gpus, gpu_model=gpu_model, gpu_memory=gpu_memory, cpus=cpus,
        memory=memory, shm=shm, limit=limit, grace=grace, priority=priority, env=env or [], secret=secret or [],
        mounts=mount or [], start_after=start_after, gpu_percent=share, gpu_profile=profile, least_gpus=least_gpus,
        node_labels=label or [], preemptible=preemptible or None, movable=movable or None,
        interactive=interactive or None, offline=offline or None, stop_signal=stop_signal,
    )  # fmt: skip
    server, patient = client(), following.Patience.of(patience)
    if preview:
        answer = server.post("/api/jobs/preview", body)
        print_json(answer) if as_json else explain.preview(answer)
        return
    job = server.post_again("/api/jobs", body | {"submission": str(uuid.uuid4())})
    if as_json:
        print_json(job)
    else:
        show.submitted(job)
    if follow:
        raise SystemExit(following.follow(server, job["id"], patience=patient))
