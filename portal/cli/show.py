"""Answers of the server as tables and sentences. Everything printed of a job is text, never markup."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.units import format_cpus, format_duration, format_memory
from portal.cli.display import progress
from portal.cli.text import _, ngettext, printable

Json = dict[str, Any]
NARROWEST = 12
out = Console(highlight=False, soft_wrap=False)
STYLES = {
    "HELD": ("⏸", "dim"), "QUEUED": ("…", "yellow"), "PLACED": ("→", "cyan"), "STARTING": ("→", "cyan"),
    "RUNNING": ("▶", "cyan bold"), "STOPPING": ("■", "yellow"), "SUCCEEDED": ("✔", "green"),
    "FAILED": ("✘", "red"), "CANCELLED": ("⊘", "dim"), "TIMED_OUT": ("⏱", "yellow"), "LOST": ("?", "magenta"),
}  # fmt: skip


def plain(value: Any) -> Text:
    """Text as it is, without the control characters that could drive the terminal."""
    return Text(printable(str("" if value is None else value)))


def state(job: Json) -> Text:
    icon, style = STYLES.get(job["state"], ("?", ""))
    return Text(f"{icon} {job.get('state_label') or job['state'].lower()}", style=style)


class Listing:
    """A table without lines. A column with a leading ">" aligns right; one with "~" gives way on a narrow terminal."""

    def __init__(self, *columns: str) -> None:
        self.titles = [column.lstrip(">~") for column in columns]
        self.right = [column.startswith(">") for column in columns]
        self.gives = [column.startswith("~") for column in columns]
        self.rows: list[list[Text]] = []

    def row(self, *cells: str | Text) -> None:
        self.rows.append([cell if isinstance(cell, Text) else plain(cell) for cell in cells])

    def show(self) -> None:
        for line in self.lines():
            out.print(line, no_wrap=True, crop=False, overflow="ignore")

    def lines(self) -> list[Text]:
        """The titles and the rows, a line each."""
        widths = self._widths()
        titles = [Text(title, style="bold") for title in self.titles]
        return [self._line(cells, widths) for cells in [titles, *self.rows]]

    def _line(self, cells: list[Text], widths: list[int]) -> Text:
        fitted = []
        for cell, width, right in zip(cells, widths, self.right, strict=True):
            shown = cell.copy()
            shown.truncate(width, overflow="ellipsis")
            shown.pad_left(width - shown.cell_len) if right else shown.pad_right(width - shown.cell_len)
            fitted.append(shown)
        line = Text("  ").join(fitted)
        line.rstrip()
        return line

    def _widths(self) -> list[int]:
        """As wide as what is in them; on a terminal those that give way share what the others leave."""
        widths = [
            max([cell_len(title), *(row[at].cell_len for row in self.rows)]) for at, title in enumerate(self.titles)
        ]
        room = out.width - sum(w + 2 for w, gives in zip(widths, self.gives, strict=True) if not gives)
        left = sum(self.gives)
        for at in (at for at, gives in enumerate(self.gives) if gives and out.is_terminal):
            share = max(room // left if left > 1 else room, NARROWEST)
            widths[at] = min(widths[at], share - 2)
            room, left = room - widths[at] - 2, left - 1
        return widths


def when(iso: str | None) -> str:
    """A time in the local zone; its date only when that is not today."""
    if not iso:
        return ""
    local, now = datetime.fromisoformat(iso).astimezone(), datetime.now().astimezone()
    return f"{local:%H:%M:%S}" if local.date() == now.date() else f"{local:%Y-%m-%d %H:%M}"


def age(iso: str | None, until: str | None = None) -> str:
    """From a time to another, or to now."""
    if not iso:
        return ""
    end = datetime.fromisoformat(until) if until else datetime.now().astimezone()
    return format_duration((end - datetime.fromisoformat(iso)).total_seconds())


def _since(job: Json) -> str:
    if job.get("started_at"):
        return age(job["started_at"], job.get("ended_at"))
    return age(job["created_at"], job.get("ended_at"))


# --- jobs ---


def jobs(rows: list[Json], *, more: bool) -> None:
    if not rows:
        out.print(_("No such jobs. dockyard submit starts one; dockyard ps --all lists ended ones too."))
        return
    starts = [(job.get("expected") or {}).get("text", "") for job in rows]
    made = Listing(_("ID"), _("STATE"), "~" + _("NAME"), _("OWNER"), ">" + _("GPUS"), _("NODE"), ">" + _("TIME"),
                 *([_("EXPECTED START")] if any(starts) else []), "~" + _("REASON"))  # fmt: skip
    for job, start in zip(rows, starts, strict=True):
        run, place = job.get("run") or {}, job.get("position")
        far = progress(job)
        said = [f"{far} ·" if far else "", f"[{place}]" if place else "", job["idle"], job["put_back"], job["headline"],
                _lent(job)]  # fmt: skip
        made.row(
            f"#{job['id']}", state(job), plain(job["name"]), plain(job["owner"]), str(job["gpus"]),
            plain(run.get("node") if job["is_live"] or job["is_ended"] else ""), _since(job),
            *([plain(start)] if any(starts) else []), plain(" ".join(filter(None, said))),
        )  # fmt: skip
    made.show()
    if more:
        out.print(_("There are more: dockyard ps --last 200"))


def _lent(job: Json) -> str:
    """In a list, of which the job's page says more."""
    return _("With borrowed GPUs.") if job["loan"] else ""


def submitted(job: Json) -> None:
    out.print(Text.assemble(f"#{job['id']} ", plain(job["name"]), " ", state(job)))
    out.print(_("Watch it: dockyard logs -f %d") % job["id"])


def facts(rows: Iterable[tuple[str, Any]]) -> None:
    shown = [(label, plain(value)) for label, value in rows if value not in (None, "", [])]
    made = Table.grid(padding=(0, 2, 0, 0))
    for label, value in shown:
        made.add_row(Text(label, style="bold"), value)
    out.print(made)


def job(found: Json, events: list[Json], receipt: Json | None = None) -> None:
    run, end = found.get("run") or {}, found.get("end") or {}
    gpus = found.get("gpus_granted") or []
    out.print(Text.assemble(f"#{found['id']} ", plain(found["name"]), "  ", state(found)))
    facts([
        (_("Put back"), found["put_back"]),
        (_("What is up"), found["headline"]),
        (_("Progress"), progress(found)),
        (_("Borrowed"), found["loan"]),
        (_("Place in the queue"), (found.get("place") or {}).get("text")),
        (_("Expected start"), start(found.get("expected"))),
        (_("What might help"), end.get("suggestion")),
        (_("The engine said"), end.get("details")),
        (_("Exit code"), found["exit_code"]),
        (_("Owner, team"), f"{found['owner']}, {found['team']}"),
        (_("Image"), found["image"]),
        (_("Asked for"), _asked(found)),
        (_("Further"), _wishes(found)),
        (_("Priority"), found["priority_label"]),
        (_("Node"), run.get("node")),
        (_("GPUs"), ", ".join(f"{gpu['index']} {gpu['model']} ({gpu['short']})" for gpu in gpus)),
        (_("Submitted"), when(found["created_at"])),
        (_("Started"), when(found["started_at"])),
        (_("Ended"), when(found["ended_at"])),
        *((_("Warning"), text) for text in found.get("warnings") or []),
    ])  # fmt: skip
    out.print()
    if receipt:
        used(receipt)
    made = Listing(_("WHEN"), _("WHAT HAPPENED"))
    for event in events:
        made.row(when(event["at"]), plain(event["message"]))
    made.show()


def used(receipt: Json) -> None:
    """What a job used of what it asked for, and the request that would have done."""
    made = Listing(_("RESOURCE"), _("ASKED FOR"), _("USED"))
    for line in receipt["lines"]:
        made.row(line["name"], line["asked"], line["used"])
    made.show()
    if receipt["advice"]:
        out.print(plain(receipt["advice"]))
    out.print()


def _asked(found: Json) -> str:
    limit = found["limit_seconds"]
    return " · ".join([
        f"{_gpus(found['gpus'])} {found['gpu_model']}".strip(), _cpus(found["millicpus"]),
        format_memory(found["memory_mib"]), format_duration(limit) if limit else _("no time limit"),
    ])  # fmt: skip


def _wishes(found: Json) -> str:
    """What it asks of hosts and GPUs beside their number, and what others may do to it."""
    words = {"preemptible": _("preemptible"), "movable": _("movable"), "interactive": _("interactive"),
             "offline": _("without network")}  # fmt: skip
    return " · ".join([
        *([_("%s%% of the GPU") % f"{found['gpu_percent']:g}"] if found["gpu_percent"] < 100 else []),
        *([f"MIG {found['gpu_profile']}"] if found["gpu_profile"] else []),
        *([_("elastic from %d") % found["least_gpus"]] if found["least_gpus"] else []), *found["node_labels"],
        *(word for name, word in words.items() if found.get(name)),
        *([found["stop_signal"]] if found["stop_signal"] != "SIGTERM" else []),
    ])  # fmt: skip


def _gpus(count: int) -> str:
    return ngettext("%(count)d GPU", "%(count)d GPUs", count) % {"count": count}


def _cpus(millicpus: int) -> str:
    number = format_cpus(millicpus)
    return ngettext("%(number)s CPU", "%(number)s CPUs", 1 if number == "1" else 2) % {"number": number}


def start(expected: Json | None) -> str:
    """When it should start and how far to trust that, as pages say it; "" when nobody can say."""
    said = expected or {}
    return ". ".join(filter(None, [said.get("text"), said.get("trust")]))


def queue(found: Json) -> None:
    if not (found["queued"] or found["held"] or found["later"]):
        out.print(_("The queue is empty."))
        return
    made = Listing(">" + _("PLACE"), _("ID"), "~" + _("NAME"), _("OWNER"), _("TEAM"), ">" + _("GPUS"), _("PRIORITY"),
                 ">" + _("WAITED"), _("EXPECTED START"), "~" + _("REASON"))  # fmt: skip
    for entry in [*found["queued"], *found["later"], *found["held"]]:
        reasons = entry["reasons"]
        place = str(entry["place"] or (_("held") if entry["state"] == "HELD" else _("later")))
        made.row(
            place, Text(f"#{entry['id']}", style="bold" if entry["mine"] else ""), plain(entry["name"] or "—"),
            plain(entry["owner"]), plain(entry["team"]), str(entry["gpus"]), entry["priority"],
            age(entry["queued_at"]), plain(entry["expected"] or "–"), plain(reasons[0]["message"] if reasons else ""),
        )  # fmt: skip
    made.show()
    if found["next"]:
        out.print(_("%d jobs wait in all; dockyard queue --json tells how to read on.") % found["total"])


# --- hardware and limits ---


def gpus(found: Json) -> None:
    if not found["nodes"]:
        out.print(_("No host has joined yet."))
        return
    made = Listing(_("NODE"), ">" + _("GPU"), "~" + _("MODEL"), ">" + _("MEMORY"), ">" + _("BUSY"), ">" + _("POWER"),
                 ">" + _("TEMP"), "~" + _("USED BY"))  # fmt: skip
    for node in found["nodes"]:
        for gpu in node["gpus"]:
            made.row(
                plain(node["node"]), str(gpu["index"]), plain(gpu["model"]), _memory(gpu),
                _unit(gpu["utilisation"], "%"), _unit(gpu["power_w"], "W"), _unit(gpu["temperature_c"], "°C"),
                _user(gpu),
            )  # fmt: skip
    if made.rows:
        made.show()
    for node in found["nodes"]:
        for sentence in _remarks(node):
            out.print(Text.assemble(plain(node["node"]), ": ", plain(sentence)))


def _unit(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:.0f} {unit}"


def _memory(gpu: Json) -> str:
    whole = "?" if gpu["memory_mib"] is None else format_memory(gpu["memory_mib"])
    used = gpu["memory_used_mib"]
    return whole if used is None else f"{format_memory(used)} / {whole}"


def _user(gpu: Json) -> Text:
    """Whose the GPU is, or why it is nobody's, in the words of the GPUs page."""
    style = {"free": "green", "sick": "red", "used": ""}.get(gpu["state"], "yellow")
    said = Text(_states().get(gpu["state"]) or _trouble(gpu), style=style)
    if gpu["job"]:
        holders = gpu.get("holders") or [gpu]
        used = Text(", ").join(Text.assemble(f"#{held['job']} ", plain(held["owner"])) for held in holders)
        said = used if gpu["state"] == "used" else Text.assemble(used, " · ", said)
    return Text.assemble(said, " · ", _("hidden")) if gpu["hidden"] and gpu["state"] != "hidden" else said


def _states() -> dict[str, str]:
    return {
        "hidden": _("hidden"), "unknown": _("no reading"), "cordoned": _("closed to new jobs"), "free": _("free"),
    }  # fmt: skip


def _trouble(gpu: Json) -> str:
    """What keeps a sick or closed GPU from jobs, or who is on it from outside."""
    if gpu["state"] == "sick":
        return {"lost": _("lost"), "missing": _("missing")}.get(gpu["health"]) or _("not healthy")
    reason = gpu["unavailable"] or {}
    words = {"GPU_QUARANTINED": _("quarantined"), "DRIVER": _("driver"), "GPU_UNHEALTHY": _("not healthy")}
    who = ", ".join(str(o.get("user") or o.get("pid") or "?") for o in reason.get("outsiders", []))
    return words.get(reason.get("code", "")) or (f"{_('outsider')} ({who})" if who else _("outsider"))


def _remarks(node: Json) -> list[str]:
    host, remarks = node["host"], list[str]()
    if not host["alive"]:
        since = when(host["last_seen"])
        remarks.append(_("no sign of life since %s.") % since if since else _("no sign of life"))
    if host["cordoned"]:
        remarks.append(_("closed to new jobs. %s") % host["cordon_reason"])
    if node["status"] not in ("ok", "simulated"):
        remarks.append(host["status_label"])
    if node["simulated"]:
        remarks.append(_("simulated GPUs."))
    if node["message"]:
        remarks.append(node["message"])
    return remarks


def quota(found: Json) -> None:
    made = Listing(_("OF"), _("WHAT"), ">" + _("USED"), ">" + _("LIMIT"))
    for level in found["levels"]:
        whose = _("you") if level["scope"] == "user" else _("team %s") % level["name"]
        for name, label, said in _QUANTITIES:
            limit, used = level["limits"].get(name), level["use"].get(name)
            budget = level["limits"]["gpu_seconds"] or level["limits"]["gpu_seconds_soft"]
            if (limit is not None or used) and (name != "window_days" or budget):
                shown = _("none") if limit is None else said(limit)
                made.row(plain(whose), label, "" if used is None else said(used), shown)
        for model, most in (level["limits"].get("gpus_by_model") or {}).items():
            used = level["use"].get("milli_by_model", {}).get(model, 0) / 1000
            made.row(plain(whose), plain(model), f"{used:g}", str(most))
    if made.rows:
        made.show()
    else:
        out.print(_("No limits are set, and nothing is in use."))


_QUANTITIES: tuple[tuple[str, str, Any], ...] = (
    ("gpus", _("GPUs"), str), ("millicpus", _("CPUs"), format_cpus), ("memory_mib", _("memory"), format_memory),
    ("guaranteed_gpus", _("guaranteed GPUs"), str),
    ("running_jobs", _("running jobs"), str), ("interactive_jobs", _("running interactive jobs"), str),
    ("queued_jobs", _("waiting jobs"), str),
    ("gpu_seconds", _("GPU-hours, used and promised"), lambda n: f"{n / 3600:.1f}"),
    ("gpu_seconds_soft", _("GPU-hours, soft mark"), lambda n: f"{n / 3600:.1f}"),
    ("window_days", _("counted over days"), str),
    ("job_gpus", _("GPUs of one job"), str), ("limit_seconds", _("longest time limit"), format_duration),
    ("priority", _("highest priority"), str),
)  # fmt: skip


def fair_share(found: Json) -> None:
    made = Listing(_("OF"), ">" + _("RANK"), ">" + _("SHARES"), ">" + _("GPU-HOURS"), ">" + _("HAD"), ">" + _("DUE"),
                 "~" + _("WHAT IT DOES"))  # fmt: skip
    for team in found["teams"]:
        for name, row in ((team["name"], team), *((f"  {m['name']}", m) for m in team["members"] or ())):
            made.row(
                plain(name), f"{row['rank']}/{row['of']}", str(row["shares"]), f"{row['gpu_hours']:.1f}",
                f"{row['part']:.0%}", f"{row['due']:.0%}", plain(row["message"]),
            )  # fmt: skip
    made.show()
    if found["weights"]:
        out.print(plain(found["weights"]))


def files(rows: list[Json]) -> None:
    if not rows:
        out.print(_("The job has left no files in its folder."))
        return
    made = Listing(">" + _("SIZE"), _("MODIFIED"), _("PATH"))
    for row in rows:
        made.row(format_memory(row["size"] / (1 << 20)) if row["size"] >= 1 << 20 else f"{row['size']} B",
                     when(row["modified"]), plain(row["path"]))  # fmt: skip
    made.show()
