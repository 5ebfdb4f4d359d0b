"""What is shown on stderr while a job waits, and the one line at its end. Output of the job itself never comes here."""

import sys
from types import TracebackType
from typing import Any, Self

from portal.cli.text import _

BEFORE_OUTPUT = frozenset({"HELD", "QUEUED", "PLACED", "STARTING"})


class Waiting:
    """A spinner with the job's state and reason on a terminal; a line for each change elsewhere."""

    def __init__(self, job: int) -> None:
        self.job = job
        self._last = ""
        self._spinner: Any = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def show(self, job: dict[str, Any]) -> None:
        """The state in one line; once the job runs, its own output has the terminal."""
        text = f"#{self.job} {describe(job)}"
        self.say(text)
        if job["state"] not in BEFORE_OUTPUT and self._spinner is not None and job["state"] != "STOPPING":
            self._pause()

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

    def close(self) -> None:
        """Leave the terminal to the job's output."""
        self._closed = True
        self._pause()

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
