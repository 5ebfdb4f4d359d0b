"""One command after every install and upgrade: database, cache table and static files as this version wants them."""

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import DatabaseError, ProgrammingError, connection

from jobs.plain import first_line
from portal import readiness

PAUSE = 1.0


class Command(BaseCommand):
    help = "Bring the database, its cache table and the collected static files up to date. Quick when they are."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--wait", action="store_true", help="only wait until another process has done it")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["wait"]:
            self._wait()
            return
        call_command("migrate", interactive=False, verbosity=0)
        call_command("createcachetable", verbosity=0)
        if _static_files_are_stale():
            call_command("collectstatic", interactive=False, clear=True, verbosity=0)

    def _wait(self) -> None:
        """Whoever looks why nothing starts finds the reason, once."""
        said = ""
        while lacking := _lacking():
            if lacking != said:
                self.stderr.write(f"Waiting for the database: {lacking}")
                said = lacking
            time.sleep(PAUSE)


def _lacking() -> str:
    """What keeps this version from using the database, in a line; empty when nothing does."""
    try:
        missing = readiness.missing_migrations()
    except ProgrammingError:  # a joined host's role may not read which; it joined a portal that is up
        return ""
    except DatabaseError as error:
        connection.close()
        return first_line(error)
    return f"{len(missing)} migrations are to be done by `manage.py prepare`" if missing else ""


def _static_files_are_stale() -> bool:
    """Whether a source is newer than the manifest that the last collection wrote, or was added or taken away."""
    manifest = Path(settings.STATIC_ROOT) / "staticfiles.json"
    if not manifest.exists():
        return True
    sources = [Path(storage.path(name)) for finder in get_finders() for name, storage in finder.list([])]
    folders = {source.parent for source in sources}
    return max(path.stat().st_mtime for path in {*sources, *folders}) > manifest.stat().st_mtime
