"""What was found, as data: it is written on one host and read on another, in the reader's own language."""

import shutil
import subprocess
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from django.conf import settings
from django.utils.translation import gettext

Verdict = Literal["ok", "warn", "fail"]
Role = Literal["web", "scheduler", "node"]
ROLES: tuple[Role, ...] = ("web", "scheduler", "node")


@dataclass(frozen=True)
class Said:
    """A message of the catalogue and its numbers; `str` puts it into the language of whoever reads."""

    text: str = ""
    params: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return gettext(self.text) % self.params if self.params else gettext(self.text) if self.text else ""


def said(text: str, **params: Any) -> Said:
    """`text` is a msgid, marked where it stands."""
    return Said(text, params)


def words(text: object) -> Said:
    """What is the same in every language: a command, a version, somebody else's words."""
    return Said("%(words)s", {"words": str(text)}) if str(text) else Said()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at: what was seen, and the remedy unless all is well. `fix` names one of `mend.FIXES`."""

    what: Said
    verdict: Verdict
    saw: Said
    advice: Said = Said()
    fix: str = ""

    @property
    def name(self) -> str:
        return str(self.what)

    @property
    def seen(self) -> str:
        return str(self.saw)

    @property
    def remedy(self) -> str:
        return str(self.advice)

    def as_data(self) -> dict[str, Any]:
        """JSON, from which `of` makes it again."""
        parts = {"what": self.what, "saw": self.saw, "advice": self.advice}
        return {
            "verdict": self.verdict, "fix": self.fix,
            **{name: {"text": part.text, "params": part.params} for name, part in parts.items()},
        }  # fmt: skip

    @classmethod
    def of(cls, data: dict[str, Any]) -> Self:
        parts = {name: Said(**data[name]) for name in ("what", "saw", "advice")}
        return cls(verdict=data["verdict"], fix=data["fix"], **parts)


def ok(what: Said, saw: Said) -> Finding:
    return Finding(what=what, verdict="ok", saw=saw)


def fail(what: Said, saw: Said, advice: Said, *, fix: str = "") -> Finding:
    return Finding(what=what, verdict="fail", saw=saw, advice=advice, fix=fix)


def warn(what: Said, saw: Said, advice: Said, *, fix: str = "") -> Finding:
    return Finding(what=what, verdict="warn", saw=saw, advice=advice, fix=fix)


def output(command: list[str], seconds: float = 10) -> str:
    """What a program prints; its last error, or the reason why it printed nothing."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, cwd=settings.BASE_DIR
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{command[0]}: no answer in {seconds:g} s"
    except OSError as error:
        return str(error)
    return (done.stdout or done.stderr).strip() or "?"


def program(name: str) -> str | None:
    """Where a program is, also in the folders of the system's own, which an account's PATH may lack."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/usr/local/bin")
