"""Why a job waits or ended, or what would become of one, and the commands that would help."""

import shlex
from collections.abc import Callable
from typing import Any

from rich.text import Text

from jobs.units import exact_duration
from portal.cli.show import Json, out, plain, start
from portal.cli.text import _


def why(found: Json) -> None:
    said = [reason["message"] for reason in found["reasons"]]
    headline = _("Cannot start: %s") % said[0] if found["cannot_start"] else found["headline"]
    out.print(Text.assemble(f"#{found['id']} ", plain(headline)))
    for sentence in said:
        if sentence not in headline:
            out.print(Text.assemble("  • ", plain(sentence)))
    _ways(found)
    if found["position"] and not found["cannot_start"]:
        out.print(_("Place %(place)d of %(length)d in the queue.")
                  % {"place": found["position"], "length": found["queue_length"]})  # fmt: skip
        if found.get("ahead"):
            out.print(plain(found["ahead"]["text"]))
    if when := start(found.get("expected")):
        out.print(Text.assemble(f"{_('Expected start')}: ", plain(when)))
    if found["suggestion"]:
        out.print(Text.assemble(_("What might help: "), plain(found["suggestion"])))
    if found["details"]:
        out.print(Text.assemble(_("The engine said: "), plain(found["details"])))


def _ways(found: Json) -> None:
    """The commands that would change it so that it starts now; or who may give them."""
    helps = [way for way in found["ways"] if way["question"]]
    if helps:
        out.print(_("So that it starts now:"))
    for way in helps:
        out.print(Text.assemble("  ", (f"dockyard amend {found['id']} {_options(way['changes'])}", "bold")))
    if found["ways_of"]:
        out.print(plain(found["ways_of"]))


def _options(changes: Json) -> str:
    """What `dockyard amend` is given for the changes of a way."""
    words: dict[str, Callable[[Any], str]] = {
        "gpus": lambda n: f"--gpus {n}", "limit_seconds": lambda s: f"--limit {shlex.quote(exact_duration(s))}",
        "millicpus": lambda m: f"--cpus {m / 1000:g}", "memory_mib": lambda m: f"--memory {m / 1024:g}",
        "gpu_model": lambda name: f"--gpu-model {shlex.quote(name or 'any')}",
        "node_labels": lambda left: " ".join(f"--label {shlex.quote(one)}" for one in left) or "--no-labels",
    }  # fmt: skip
    return " ".join(words[name](value) for name, value in changes.items())


def preview(found: Json) -> None:
    sentence = {
        "now": _("It would start now on %(node)s."),
        "waits": _("It would wait, at place %(position)d of the queue:") if found["position"] else _("It would wait:"),
        "never": _("It would never start:"),
    }[found["verdict"]]  # fmt: skip
    out.print(plain(sentence % found))
    if when := start({"text": found["expected"], "trust": found["trust"]}):
        out.print(Text.assemble(f"{_('Expected start')}: ", plain(when)))
    for reason in found["reasons"]:
        out.print(Text.assemble("  • ", plain(reason["message"])))
