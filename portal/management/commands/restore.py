"""`manage.py restore FILE`: put what `manage.py backup` has made in the place of this installation's data."""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from portal import databasedump
from portal.archive import Damaged
from portal.restore import Refused, examine, has_other_key, restore


class Command(BaseCommand):
    help = "Replace this installation's data by a back-up. Stop web, scheduler and nodes first."
    requires_system_checks = ()  # there may be no database yet

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="what `manage.py backup` has made")
        parser.add_argument("--force", action="store_true", help="replace the people and jobs that are here")
        parser.add_argument("--other-installation", action="store_true", help="also when INSTALLATION differs")
        parser.add_argument("--no-pause", action="store_true", help="let jobs start at once afterwards")

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        path = Path(options["file"])
        try:
            reader = examine(path, force=options["force"], other_installation=options["other_installation"])
            if has_other_key(reader):
                said = _("Its secrets were encrypted with another SECRETS_KEY. Set that one, or enter them anew.")
                self.stderr.write(said)
            counts = restore(reader, paused=not options["no_pause"])
        except Refused as error:
            raise CommandError(str(error)) from error
        except (databasedump.Failed, Damaged, OSError) as error:
            raise CommandError(_("The restore broke off: %(why)s") % {"why": error}) from error
        parts = ", ".join(f"{count} × {name}" for name, count in sorted(counts.items()))
        self.stdout.write(f"{databasedump.where()}: {parts}")
        if not options["no_pause"]:
            self.stdout.write(
                _(
                    "All starts are paused. Start web, scheduler and nodes, look at the unknown containers on the "
                    "health page or by manage.py doctor, then resume starts in the admin pages."
                )
            )
