"""What is shown on stderr while a job waits or runs, and the line at its end; never the job's output."""

import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from jobs.units import format_duration
from portal.cli.text import _, printable

BEFORE_OUTPUT = frozenset({"HELD", "QUEUED", "PLACED", "STARTING"})


_PUSH_TITLE, _POP_TITLE = "\x1b[22;2t", "\x1b[23;2t"


class Waiting:
    """A spinner with the job's state and reason on a terminal; a line for each change elsewhere.

    How far a running job is stands there too, a line for each tenth elsewhere; in the terminal's title where the
    terminal belongs to the job's output (`shared`).
    """

    def __init__(self, job: int, *, shared: bool = False) -> None:
        self.job = job
        self.shared = shared
        self._last = ""
        self._tenth = -1
        self._titled = False
        self._spinner: Any = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def show(self, job: dict[str, Any]) -> None:
        """The state in one line, and how far it is; once the job runs, its own output has a shared terminal."""
        text, far = f"#{self.job} {describe(job)}", progress(job)
        own = sys.stderr.isatty() and not self.shared
        self.say(f"{text} · {far}" if own and far else text)
        if job["state"] not in BEFORE_OUTPUT and self._spinner is not None and job["state"] != "STOPPING" and not own:
            self._pause()
        if far and not own:
            self._tell(far, job["output"]["percent"] // 10)

    def _tell(self, far: str, tenth: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"{'' if self._titled else _PUSH_TITLE}\x1b]2;#{self.job} {far}\x07")
            sys.stderr.flush()
            self._titled = True
        elif tenth != self._tenth:
            sys.stderr.write(f"#{self.job} {far}\n")
        self._tenth = tenth

    def say(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        if not sys.stderr.isatty():
            sys.stderr.write(text + "\n")
        elif not self._closed:
            self._spin(text)

    def _spin(self, text: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.status import Status

        if self._spinner is None:
            self._spinner = Status(escape(text), console=Console(stderr=True))
            self._spinner.start()
        else:
            self._spinner.update(escape(text))

    def _pause(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def note(self, text: str) -> None:
        """A line of ours between the job's."""
        self._pause()
        sys.stderr.write(f"\ndockyard: {text}\n")

    def give_way(self) -> None:
        """Leave a shared terminal to the job's output."""
        if self.shared:
            self._closed = True
            self._pause()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._closed = True
        self._pause()
        if self._titled:
            sys.stderr.write(_POP_TITLE)
        self._titled = False

    def ended(self, job: dict[str, Any]) -> None:
        self.close()
        if sys.stderr.isatty() or self._last != f"#{self.job} {describe(job)}":
            sys.stderr.write(f"#{self.job} {describe(job)}\n")


def describe(job: dict[str, Any]) -> str:
    """State, place in the queue and the one sentence: "waiting (3rd of 7): The GPUs are busy …"."""
    place = (job.get("place") or {}).get("text")
    label = job["state_label"] + (_(" (%s in the queue)") % place if place else "")
    sentence = (job.get("progress") or {}).get("text") or job["headline"]
    return label if sentence in ("", job["state_label"]) else f"{label}: {sentence}"


def progress(job: dict[str, Any]) -> str:
    """What its output says of how far it is: "24 %, step 120 of 500, about 5 min left"; "" when it says nothing."""
    said = job.get("output")
    if not said:
        return ""
    ends_at = said["ends_at"] and datetime.fromisoformat(said["ends_at"])
    seconds = (ends_at - datetime.now(UTC)).total_seconds() if ends_at else 0
    left = _("about %s left") % format_duration(seconds) if seconds >= 1 else ""
    text = ", ".join(filter(None, [f"{said['percent']} %", said["text"], left]))
    return printable(text)  # a program's own words could drive the terminal
