"""`manage.py backup DIR_OR_FILE`: database, logs and files of this installation in one file, also while jobs run."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal import databasedump
from portal.backup import Made, backup
from portal.readiness import applied_migrations


class Command(BaseCommand):
    help = "Back up database, logs and files into one file, to be restored by `manage.py restore`. Jobs may run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("target", help="a file to be made, or a folder in which one is made")
        parser.add_argument("--no-logs", action="store_true", help="leave out logs, which have a back-up of their own")
        parser.add_argument("--workspaces", action="store_true", help="also the workspaces below WORKSPACE_ROOT")

    def handle(self, *args: Any, **options: Any) -> None:
        target = Path(options["target"])
        if target.exists() and not target.is_dir():
            raise CommandError(_("%(path)s is there already.") % {"path": target})
        if not applied_migrations():  # another one than the services', as it seems
            said = _("%(database)s is empty: run this with the settings of the services, see DOCKYARD_ENV_FILE.")
            raise CommandError(said % {"database": databasedump.where()})
        try:
            made = backup(target, with_logs=not options["no_logs"], with_workspaces=options["workspaces"])
        except (databasedump.Failed, OSError) as error:
            raise CommandError(str(error)) from error
        self._say(made)

    def _say(self, made: Made) -> None:
        self.stdout.write(_("%(path)s: %(mib).1f MiB") % {"path": made.path, "mib": made.size / (1 << 20)})
        parts = ", ".join(f"{count} × {name}" for name, count in sorted(made.counts.items()))
        self.stdout.write(f"  {databasedump.where()}: {parts}")
        if made.missing or made.changed:
            said = ngettext(
                "%(count)d piece of a log or file changed or went meanwhile; it is in it as it was met, or not at all.",
                "%(count)d pieces of logs or files changed or went meanwhile; they are in it as met, or not at all.",
                made.missing + made.changed,
            )
            self.stdout.write(said % {"count": made.missing + made.changed})
        self.stdout.write(_("Keep DATA_DIR/secret_key (or SECRETS_KEY) elsewhere: secrets can't be read without it."))
