"""`manage.py doctor`: each thing that Dockyard stands on, with its remedy. Exit status 1 when something is red."""

import sys
from typing import IO, Any, cast

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _
from rich.console import Console
from rich.table import Table
from rich.text import Text

from portal.doctor import examine

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


class Command(BaseCommand):
    help = "Look at engine, GPUs, Redis, database, disks and settings of this host, and say what to mend."
    requires_system_checks = ()  # they are among what is looked at

    def handle(self, *args: Any, **options: Any) -> None:
        findings = []
        table = Table(show_edge=False, pad_edge=False, header_style="bold")
        for title in ("", _("What"), _("Seen"), _("Remedy")):
            table.add_column(title, overflow="fold")
        for finding in examine():
            findings.append(finding)
            mark, colour = MARKS[finding.verdict]
            table.add_row(Text(mark, style=colour), Text(finding.name), Text(finding.seen), Text(finding.remedy))
        Console(file=cast(IO[str], self.stdout)).print(table)
        failed = sum(finding.verdict == "fail" for finding in findings)
        if failed:
            self.stderr.write(_("%(count)d to mend.") % {"count": failed})
            sys.exit(1)
        self.stdout.write(_("All is well."))
