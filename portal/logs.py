"""How every process writes its log: as text or as JSON, each line with the job, run and request that it is about.

Whoever acts on a run says so with `about`; the lines that are written meanwhile in the same thread or task carry it.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from jobs.plain import INVISIBLE

Ids = dict[str, str | int]
NAMES = ("job", "run", "request")  # in this order in a line of text
_ids: ContextVar[Ids | None] = ContextVar("dockyard_log_ids", default=None)


@contextmanager
def about(**ids: str | int) -> Iterator[None]:
    """Lines written in the block are about these, besides what the blocks around it have said."""
    token = _ids.set({**(_ids.get() or {}), **ids})
    try:
        yield
    finally:
        _ids.reset(token)


def know(**ids: str | int) -> None:
    """Add what has become known only within the innermost `about`; outside of any, nothing."""
    if (known := _ids.get()) is not None:
        known.update(ids)


class KnownIds(logging.Filter):
    """Puts `ids` on each record: those of its own `extra` go before those of the block."""

    def filter(self, record: logging.LogRecord) -> bool:
        own = {name: getattr(record, name) for name in NAMES if isinstance(getattr(record, name, None), str | int)}
        record.ids = {**(_ids.get() or {}), **own}
        return True


class Text(logging.Formatter):
    """`2026-11-30 13:40:00,123 WARNING jobs.launch: the engine … [job=7 run=9]`, and below it the trace, if any.

    What acts without being seen is written as in Python's source: nobody's words begin a line or drive a terminal.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        said = _plain(super().formatMessage(record))
        ids = getattr(record, "ids", {})
        told = " ".join(f"{name}={ids[name]}" for name in NAMES if name in ids)
        return f"{said} [{told}]" if told else said

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return self.formatStack(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return "\n".join(_plain(line) for line in stack_info.split("\n"))


def _plain(text: str) -> str:
    return INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Json(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, the ids that are known, `fields`, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name,
            "message": record.getMessage(), "process": record.process, **getattr(record, "ids", {}),
            **getattr(record, "fields", {}),
        }  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        return INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # those that JSON leaves as they are


def config(form: str, level: str) -> dict[str, Any]:
    """Django's LOGGING. Uvicorn's own lines go the same way; those of its requests are ours, see `RequestIds`."""
    quiet = {name: {"level": "WARNING"} for name in ("rq.worker", "docker", "urllib3")}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"ids": {"()": "portal.logs.KnownIds"}},
        "formatters": {"text": {"()": "portal.logs.Text"}, "json": {"()": "portal.logs.Json"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": form, "filters": ["ids"]}},
        "root": {"handlers": ["console"], "level": level},
        "loggers": {
            **quiet,
            "uvicorn": {"handlers": [], "propagate": True},
            "uvicorn.error": {"handlers": [], "propagate": True},
            "uvicorn.access": {"handlers": [], "propagate": True, "level": "WARNING"},
        },
    }
