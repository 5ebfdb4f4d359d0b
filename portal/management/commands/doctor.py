"""`manage.py doctor`: each thing that Dockyard stands on, with its remedy. Exit status 1 when something is red."""

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from typing import IO, Any, cast

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _
from rich.console import Console
from rich.table import Table
from rich.text import Text

from portal.doctor import mend
from portal.doctor.examine import examine
from portal.doctor.finding import ROLES, Finding

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


class Command(BaseCommand):
    help = "Look at engine, GPUs, Redis, database, disks and settings of this host, and say what to mend."
    requires_system_checks = ()  # they are among what is looked at

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--role", choices=ROLES, action="append", help="only what this role needs; all without")
        parser.add_argument("--json", action="store_true", help="for programs: a list of what was found")
        parser.add_argument("--fix", action="store_true", help="mend what is safe to mend, after asking")
        parser.add_argument("--yes", action="store_true", help="with --fix: do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        roles = options["role"] or ROLES
        findings = examine(roles)
        if options["fix"] and self._mend(findings, ask=not options["yes"]):
            findings = examine(roles)
        if options["json"]:
            self.stdout.write(json.dumps([_plain(finding) for finding in findings], ensure_ascii=False, indent=1))
        else:
            Console(file=cast(IO[str], self.stdout)).print(_table(findings))
        found = Counter(finding.verdict for finding in findings)
        if found["fail"]:
            self.stderr.write(_("%(count)d to mend.") % {"count": found["fail"]})
            sys.exit(1)
        if not options["json"]:
            know = _("Nothing to mend; %(count)d to know.") % {"count": found["warn"]}
            self.stdout.write(know if found["warn"] else _("All is well."))

    def _mend(self, findings: list[Finding], *, ask: bool) -> bool:
        """Whether anything was done."""
        done = False
        for fix in mend.fixes(findings):
            self.stderr.write(_("To do: %(what)s") % {"what": fix.does})
            if ask and input(_("Do it? [y/N] ")).strip().lower() not in ("y", "yes"):
                continue
            try:
                self.stderr.write(f"  {fix.act()}")
                done = True
            except Exception as error:  # noqa: BLE001 - one that fails is told, and the next comes
                self.stderr.write(f"  {error}")
        return done


def _plain(finding: Finding) -> dict[str, str]:
    told = {"name": finding.name, "verdict": finding.verdict, "seen": finding.seen, "remedy": finding.remedy}
    return {**told, "fix": finding.fix}


def _table(findings: list[Finding]) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for title in ("", _("What"), _("Seen"), _("Remedy")):
        table.add_column(title, overflow="fold")
    for finding in findings:
        mark, colour = MARKS[finding.verdict]
        table.add_row(Text(mark, style=colour), Text(finding.name), Text(finding.seen), Text(finding.remedy))
    return table
